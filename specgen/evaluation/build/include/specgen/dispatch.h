// AT_DISPATCH_*: one body per element type. Complex and quantised families are left to the stock route.
#pragma once

#include <specgen/tensor.h>

#define AT_DISPATCH_CASE(enum_type, ...)                                                \
  case enum_type: {                                                                     \
    using scalar_t [[maybe_unused]] = ::c10::impl::ScalarTypeToCPPTypeT<enum_type>;     \
    return __VA_ARGS__();                                                               \
  }

#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                            \
  [&] {                                                                \
    const auto& the_type = TYPE;                                       \
    constexpr const char* at_dispatch_name = NAME;                     \
    const ::c10::ScalarType _st = the_type;                            \
    switch (_st) {                                                     \
      __VA_ARGS__                                                      \
      default:                                                         \
        TORCH_CHECK_NOT_IMPLEMENTED(                                   \
            false,                                                     \
            '"',                                                       \
            at_dispatch_name,                                          \
            "\" not implemented for '",                                \
            ::c10::toString(_st),                                      \
            "'");                                                      \
    }                                                                  \
  }()

// Families of cases.
#define AT_DISPATCH_CASE_FLOATING_TYPES(...)                 \
  AT_DISPATCH_CASE(::c10::ScalarType::Double, __VA_ARGS__)   \
  AT_DISPATCH_CASE(::c10::ScalarType::Float, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(...) \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)        \
  AT_DISPATCH_CASE(::c10::ScalarType::Half, __VA_ARGS__)
#define AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(...)       \
  AT_DISPATCH_CASE(::c10::ScalarType::Half, __VA_ARGS__)   \
  AT_DISPATCH_CASE(::c10::ScalarType::BFloat16, __VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...)               \
  AT_DISPATCH_CASE(::c10::ScalarType::Byte, __VA_ARGS__)   \
  AT_DISPATCH_CASE(::c10::ScalarType::Char, __VA_ARGS__)   \
  AT_DISPATCH_CASE(::c10::ScalarType::Int, __VA_ARGS__)    \
  AT_DISPATCH_CASE(::c10::ScalarType::Long, __VA_ARGS__)   \
  AT_DISPATCH_CASE(::c10::ScalarType::Short, __VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...)        \
  AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) \
  AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)

// Families alone.
#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(__VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__))

// Families with one to four more types.
#define SPECGEN_AND1(A, ...) AT_DISPATCH_CASE(A, __VA_ARGS__)
#define SPECGEN_AND2(A, B, ...) AT_DISPATCH_CASE(A, __VA_ARGS__) AT_DISPATCH_CASE(B, __VA_ARGS__)
#define SPECGEN_AND3(A, B, C, ...) SPECGEN_AND2(A, B, __VA_ARGS__) AT_DISPATCH_CASE(C, __VA_ARGS__)
#define SPECGEN_AND4(A, B, C, D, ...) SPECGEN_AND3(A, B, C, __VA_ARGS__) AT_DISPATCH_CASE(D, __VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) SPECGEN_AND1(A, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(A, B, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) SPECGEN_AND2(A, B, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND3(A, B, C, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) SPECGEN_AND3(A, B, C, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND4(A, B, C, D, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) SPECGEN_AND4(A, B, C, D, __VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) SPECGEN_AND1(A, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(A, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) SPECGEN_AND1(A, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(A, B, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) SPECGEN_AND2(A, B, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND3(A, B, C, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) SPECGEN_AND3(A, B, C, __VA_ARGS__))
