// Element types: c10::ScalarType, caffe2::TypeMeta, and the C++ type of each.
//
// The numbers are torch's own; the support library asserts them when it is compiled. Quantised, complex and bit types
// are left out: a source that names one is built by the stock route.
#pragma once

#include <specgen/abi.h>

#include <type_traits>

#ifdef SPECGEN_WITH_HALF
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>
#endif

// C++ type, enumerator. Half and BFloat16 only where the source names them: their headers cost compile time.
#define SPECGEN_FORALL_PLAIN_TYPES(_) \
  _(uint8_t, Byte)                    \
  _(int8_t, Char)                     \
  _(int16_t, Short)                   \
  _(int32_t, Int)                     \
  _(int64_t, Long)                    \
  _(float, Float)                     \
  _(double, Double)                   \
  _(bool, Bool)                       \
  _(uint16_t, UInt16)                 \
  _(uint32_t, UInt32)                 \
  _(uint64_t, UInt64)

namespace c10 {
inline namespace specgen_v1 {

enum class ScalarType : int8_t {
  Byte = 0,
  Char = 1,
  Short = 2,
  Int = 3,
  Long = 4,
  Half = 5,
  Float = 6,
  Double = 7,
  ComplexHalf = 8,
  ComplexFloat = 9,
  ComplexDouble = 10,
  Bool = 11,
  BFloat16 = 15,
  Float8_e5m2 = 23,
  Float8_e4m3fn = 24,
  UInt16 = 27,
  UInt32 = 28,
  UInt64 = 29,
};

constexpr ScalarType kByte = ScalarType::Byte;
constexpr ScalarType kChar = ScalarType::Char;
constexpr ScalarType kShort = ScalarType::Short;
constexpr ScalarType kInt = ScalarType::Int;
constexpr ScalarType kLong = ScalarType::Long;
constexpr ScalarType kHalf = ScalarType::Half;
constexpr ScalarType kFloat = ScalarType::Float;
constexpr ScalarType kDouble = ScalarType::Double;
constexpr ScalarType kBool = ScalarType::Bool;
constexpr ScalarType kBFloat16 = ScalarType::BFloat16;
constexpr ScalarType kFloat8_e5m2 = ScalarType::Float8_e5m2;
constexpr ScalarType kFloat8_e4m3fn = ScalarType::Float8_e4m3fn;
constexpr ScalarType kUInt16 = ScalarType::UInt16;
constexpr ScalarType kUInt32 = ScalarType::UInt32;
constexpr ScalarType kUInt64 = ScalarType::UInt64;

template <class T>
struct CppTypeToScalarType;

namespace impl {
template <ScalarType N>
struct ScalarTypeToCPPType;

#define SPECGEN_MAP_TYPE(cpp, name)            \
  template <>                                  \
  struct ScalarTypeToCPPType<ScalarType::name> { \
    using type = cpp;                          \
  };
SPECGEN_FORALL_PLAIN_TYPES(SPECGEN_MAP_TYPE)
#ifdef SPECGEN_WITH_HALF
SPECGEN_MAP_TYPE(::c10::Half, Half)
SPECGEN_MAP_TYPE(::c10::BFloat16, BFloat16)
#endif
#undef SPECGEN_MAP_TYPE

template <ScalarType N>
using ScalarTypeToCPPTypeT = typename ScalarTypeToCPPType<N>::type;
} // namespace impl

#define SPECGEN_MAP_TYPE(cpp, name)                                                            \
  template <>                                                                                  \
  struct CppTypeToScalarType<cpp> : std::integral_constant<ScalarType, ScalarType::name> {};
SPECGEN_FORALL_PLAIN_TYPES(SPECGEN_MAP_TYPE)
#ifdef SPECGEN_WITH_HALF
SPECGEN_MAP_TYPE(::c10::Half, Half)
SPECGEN_MAP_TYPE(::c10::BFloat16, BFloat16)
#endif
#undef SPECGEN_MAP_TYPE

inline const char* toString(ScalarType t) {
  return specgen_scalar_type_name(static_cast<int32_t>(t));
}

inline size_t elementSize(ScalarType t) {
  return static_cast<size_t>(specgen_element_size(static_cast<int32_t>(t)));
}

inline bool isIntegralType(ScalarType t, bool include_bool) {
  const bool integer = t == ScalarType::Byte || t == ScalarType::Char || t == ScalarType::Short ||
      t == ScalarType::Int || t == ScalarType::Long || t == ScalarType::UInt16 || t == ScalarType::UInt32 ||
      t == ScalarType::UInt64;
  return integer || (include_bool && t == ScalarType::Bool);
}

inline bool isReducedFloatingType(ScalarType t) {
  const auto n = static_cast<int>(t);
  return t == ScalarType::Half || t == ScalarType::BFloat16 || (n >= 23 && n <= 26);
}

inline bool isFloatingType(ScalarType t) {
  return t == ScalarType::Double || t == ScalarType::Float || isReducedFloatingType(t);
}

inline bool isComplexType(ScalarType t) {
  return t == ScalarType::ComplexHalf || t == ScalarType::ComplexFloat || t == ScalarType::ComplexDouble;
}

} // namespace specgen_v1
} // namespace c10

namespace caffe2 {
inline namespace specgen_v1 {

// What Tensor::dtype() returns: comparable with a ScalarType, but (as in torch) not convertible to one.
class TypeMeta {
 public:
  TypeMeta() = default;
  static TypeMeta fromScalarType(c10::ScalarType t) {
    TypeMeta m;
    m.type_ = t;
    return m;
  }
  template <class T>
  static TypeMeta Make() {
    return fromScalarType(c10::CppTypeToScalarType<T>::value);
  }
  c10::ScalarType toScalarType() const {
    return type_;
  }
  size_t itemsize() const {
    return c10::elementSize(type_);
  }
  const char* name() const {
    return specgen_type_name(static_cast<int32_t>(type_));
  }
  friend bool operator==(TypeMeta a, TypeMeta b) {
    return a.type_ == b.type_;
  }
  friend bool operator!=(TypeMeta a, TypeMeta b) {
    return a.type_ != b.type_;
  }

 private:
  c10::ScalarType type_ = c10::ScalarType::Float;
};

} // namespace specgen_v1
} // namespace caffe2

namespace c10 {
inline namespace specgen_v1 {

inline caffe2::TypeMeta scalarTypeToTypeMeta(ScalarType t) {
  return caffe2::TypeMeta::fromScalarType(t);
}
inline ScalarType typeMetaToScalarType(caffe2::TypeMeta m) {
  return m.toScalarType();
}
inline bool operator==(ScalarType t, caffe2::TypeMeta m) {
  return m.toScalarType() == t;
}
inline bool operator==(caffe2::TypeMeta m, ScalarType t) {
  return m.toScalarType() == t;
}
inline bool operator!=(ScalarType t, caffe2::TypeMeta m) {
  return m.toScalarType() != t;
}
inline bool operator!=(caffe2::TypeMeta m, ScalarType t) {
  return m.toScalarType() != t;
}

} // namespace specgen_v1
} // namespace c10
