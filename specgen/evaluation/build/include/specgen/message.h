// Messages: c10::str and the check macros (TORCH_CHECK and its family), raised as the real c10 errors.
//
// A small builder in place of <sstream>, which costs more to compile than the rest of the façade. It knows the types
// that messages are made of; any other type does not compile here and goes to the stock route.
#pragma once

#include <specgen/scalar_type.h>

#include <cstdio>
#include <string>

namespace c10 {
inline namespace specgen_v1 {

inline void append(std::string& out, const char* text) {
  out += text;
}
inline void append(std::string& out, const std::string& text) {
  out += text;
}
inline void append(std::string& out, bool value) {
  out += value ? '1' : '0';
}
inline void append(std::string& out, char value) {
  out += value;
}
inline void append(std::string& out, signed char value) {
  out += static_cast<char>(value);
}
inline void append(std::string& out, unsigned char value) {
  out += static_cast<char>(value);
}
template <class T>
std::enable_if_t<std::is_arithmetic_v<T>> append(std::string& out, T value) {
  if constexpr (std::is_floating_point_v<T>) { // what an ostream prints by default: six significant digits
    char text[64];
    std::snprintf(text, sizeof text, "%Lg", static_cast<long double>(value));
    out += text;
  } else {
    out += std::to_string(value);
  }
}
template <class T>
std::enable_if_t<std::is_enum_v<T> && std::is_convertible_v<T, int>> append(std::string& out, T value) {
  out += std::to_string(static_cast<std::underlying_type_t<T>>(value));
}
inline void append(std::string& out, ScalarType value) {
  out += toString(value);
}
inline void append(std::string& out, caffe2::TypeMeta value) {
  out += value.name();
}

template <class... A>
std::string str(const A&... parts) {
  std::string out;
  (append(out, parts), ...);
  return out;
}

namespace specgen_detail {
// The same choice as torch's: no words, one C string as it is, or everything joined.
template <class... A>
std::string check_message(const char*, const A&... parts) {
  return str(parts...);
}
inline const char* check_message(const char* fallback) {
  return fallback;
}
inline const char* check_message(const char*, const char* text) {
  return text;
}
inline const char* c_str(const char* text) {
  return text;
}
inline const char* c_str(const std::string& text) {
  return text.c_str();
}
} // namespace specgen_detail

} // namespace specgen_v1
} // namespace c10

#define SPECGEN_STRINGIZE_(x) #x
#define SPECGEN_STRINGIZE(x) SPECGEN_STRINGIZE_(x)
#define SPECGEN_UNLIKELY(x) (__builtin_expect(static_cast<bool>(x), 0))

#define SPECGEN_CHECK_WITH(kind, cond, ...)                                                             \
  if (SPECGEN_UNLIKELY(!(cond))) {                                                                      \
    ::specgen_raise(                                                                                    \
        kind,                                                                                           \
        __func__,                                                                                       \
        __FILE__,                                                                                       \
        static_cast<uint32_t>(__LINE__),                                                                \
        ::c10::specgen_detail::c_str(::c10::specgen_detail::check_message(                                              \
            "Expected " #cond " to be true, but got false.  (Could this error message be improved?  If so, " \
            "please report an enhancement request to PyTorch.)" __VA_OPT__(, ) __VA_ARGS__)));          \
  }

// The façade's own checks, where torch has the same one inside.
#define SPECGEN_REQUIRE(cond, ...) SPECGEN_CHECK_WITH(SPECGEN_ERROR, cond, __VA_ARGS__)

#define TORCH_CHECK(cond, ...) SPECGEN_CHECK_WITH(SPECGEN_ERROR, cond, __VA_ARGS__)
#define TORCH_CHECK_INDEX(cond, ...) SPECGEN_CHECK_WITH(SPECGEN_INDEX_ERROR, cond, __VA_ARGS__)
#define TORCH_CHECK_VALUE(cond, ...) SPECGEN_CHECK_WITH(SPECGEN_VALUE_ERROR, cond, __VA_ARGS__)
#define TORCH_CHECK_TYPE(cond, ...) SPECGEN_CHECK_WITH(SPECGEN_TYPE_ERROR, cond, __VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(cond, ...) SPECGEN_CHECK_WITH(SPECGEN_NOT_IMPLEMENTED_ERROR, cond, __VA_ARGS__)
#define TORCH_CHECK_ARG(cond, n, ...) TORCH_CHECK(cond, "invalid argument ", n, ": ", __VA_ARGS__)

#define TORCH_INTERNAL_ASSERT(cond, ...)                                                                        \
  if (SPECGEN_UNLIKELY(!(cond))) {                                                                              \
    ::specgen_raise_internal(                                                                                   \
        __func__,                                                                                               \
        __FILE__,                                                                                               \
        static_cast<uint32_t>(__LINE__),                                                                        \
        #cond " INTERNAL ASSERT FAILED at " SPECGEN_STRINGIZE(__FILE__) ":" SPECGEN_STRINGIZE(                  \
            __LINE__) ", please report a bug to PyTorch. ",                                                     \
        ::c10::str(__VA_ARGS__).c_str());                                                                       \
  }
#define AT_ASSERT(...)                  \
  do {                                  \
    TORCH_INTERNAL_ASSERT(__VA_ARGS__); \
  } while (false)
#define AT_ASSERTM(cond, ...)                 \
  do {                                        \
    TORCH_INTERNAL_ASSERT(cond, __VA_ARGS__); \
  } while (false)
#define AT_ERROR(...)                              \
  do {                                             \
    TORCH_CHECK(false, ::c10::str(__VA_ARGS__));   \
  } while (false)

#define TORCH_WARN(...) \
  ::specgen_warn(__func__, __FILE__, static_cast<uint32_t>(__LINE__), ::c10::str(__VA_ARGS__).c_str());
#define TORCH_WARN_ONCE(...)                                            \
  {                                                                     \
    static bool specgen_warned = false;                                 \
    if (::specgen_warn_always() || !specgen_warned) {                   \
      specgen_warned = true;                                            \
      TORCH_WARN(__VA_ARGS__)                                           \
    }                                                                   \
  }

#define C10_LIKELY(x) (__builtin_expect(static_cast<bool>(x), 1))
#define C10_UNLIKELY(x) (__builtin_expect(static_cast<bool>(x), 0))
#define C10_RESTRICT __restrict
#define C10_UNUSED __attribute__((__unused__))
#ifdef __CUDACC__
#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#define C10_LAUNCH_BOUNDS_1(x) __launch_bounds__(x)
#define C10_LAUNCH_BOUNDS_2(x, y) __launch_bounds__(x, y)
#else
#define C10_HOST_DEVICE
#define C10_DEVICE
#define C10_HOST
#endif
#define C10_ALWAYS_INLINE __attribute__((__always_inline__)) inline
