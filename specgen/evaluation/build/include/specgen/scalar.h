// c10::Scalar: one number of Python's kinds (int, float, bool).
#pragma once

#include <specgen/message.h>

#include <limits>
#include <stdexcept>

namespace c10 {
inline namespace specgen_v1 {

class Scalar {
 public:
  Scalar() : Scalar(static_cast<int64_t>(0)) {}
  template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
  Scalar(T x) : value_{SPECGEN_DOUBLE, {}, 0} {
    value_.d = static_cast<double>(x);
  }
  template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
  Scalar(T x) : value_{SPECGEN_INT, {static_cast<int64_t>(x)}, 0} {
    static_assert(sizeof(T) < 8 || std::is_signed_v<T>, "64-bit unsigned scalars are left to the stock route");
  }
  template <class T, std::enable_if_t<std::is_same_v<T, bool>, int> = 0>
  Scalar(T x) : value_{SPECGEN_BOOL, {x ? 1 : 0}, 0} {}
#ifdef SPECGEN_WITH_HALF
  Scalar(Half x) : Scalar(static_cast<float>(x)) {}
  Scalar(BFloat16 x) : Scalar(static_cast<float>(x)) {}
#endif
  explicit Scalar(const SpecgenValue& value) : value_(value) {}

  bool isFloatingPoint() const {
    return value_.tag == SPECGEN_DOUBLE;
  }
  bool isIntegral(bool include_bool) const {
    return value_.tag == SPECGEN_INT || (include_bool && isBoolean());
  }
  bool isBoolean() const {
    return value_.tag == SPECGEN_BOOL;
  }
  template <class T>
  T to() const {
    static_cast<void>(CppTypeToScalarType<T>::value); // only for element types, as torch's
    return value_.tag == SPECGEN_DOUBLE ? checked<T>(value_.d) : checked<T>(value_.i);
  }
  double toDouble() const {
    return to<double>();
  }
  float toFloat() const {
    return to<float>();
  }
  int toInt() const {
    return to<int>();
  }
  int64_t toLong() const {
    return to<int64_t>();
  }
  bool toBool() const {
    return to<bool>();
  }
  const SpecgenValue& value() const {
    return value_;
  }

 private:
  template <class T, class From>
  static T checked(From x) {
    if constexpr (std::is_same_v<T, bool>) {
      return x != 0;
    } else if constexpr (std::is_floating_point_v<T> && std::is_floating_point_v<From>) {
      const bool infinite = x - x != 0; // infinities and NaN convert to themselves
      if (!infinite && (x < static_cast<From>(std::numeric_limits<T>::lowest()) || x > static_cast<From>(std::numeric_limits<T>::max()))) {
        overflow<T>();
      }
      return static_cast<T>(x);
    } else if constexpr (std::is_integral_v<T>) {
      // A negative value may wrap into an unsigned type, down to -max: torch allows that.
      using L = std::numeric_limits<T>;
      const long double v = static_cast<long double>(x);
      const long double low = L::is_signed ? static_cast<long double>(L::lowest()) : -static_cast<long double>(L::max());
      if (!(v >= low && v <= static_cast<long double>(L::max()))) {
        overflow<T>();
      }
      return L::is_signed ? static_cast<T>(x) : static_cast<T>(static_cast<int64_t>(x));
    } else {
      return static_cast<T>(static_cast<float>(x));
    }
  }
  template <class T>
  [[noreturn]] static void overflow() {
    throw std::runtime_error(
        std::string("value cannot be converted to type ") + name(CppTypeToScalarType<T>::value) + " without overflow");
  }
  static const char* name(ScalarType t) {
    switch (t) {
#define SPECGEN_NAME(cpp, type) \
  case ScalarType::type:        \
    return #cpp;
      SPECGEN_FORALL_PLAIN_TYPES(SPECGEN_NAME)
#undef SPECGEN_NAME
      default:
        return "at::Half";
    }
  }

  SpecgenValue value_;
};

inline void append(std::string& out, const Scalar& s) {
  if (s.isFloatingPoint()) {
    append(out, s.toDouble());
  } else if (s.isBoolean()) {
    out += s.toBool() ? "true" : "false";
  } else {
    append(out, s.toLong());
  }
}

} // namespace specgen_v1
} // namespace c10
