// Calls of ATen's operators, by name and overload, through the dispatcher (autograd and all), with typed arguments.
//
// `invoke<R>(op, arguments…)` is what the generated functions and methods consist of. An argument of a type that
// `Argument` does not know does not compile here and goes to the stock route.
#pragma once

#include <specgen/tensor.h>

namespace specgen {
inline namespace specgen_v1 {

// One argument as a tagged value; keeps alive what the value points to.
struct Argument : SpecgenValue {
  Argument(const at::Tensor& t) : Argument(SPECGEN_TENSOR, t.specgen_handle()) {}
  Argument(const c10::Scalar& s) : SpecgenValue(s.value()) {}
  Argument(bool x) : SpecgenValue{SPECGEN_BOOL, {x ? 1 : 0}, 0} {}
  Argument(int64_t x) : SpecgenValue{SPECGEN_INT, {x}, 0} {}
  Argument(double x) : SpecgenValue{SPECGEN_DOUBLE, {}, 0} {
    d = x;
  }
  Argument(at::ScalarType x) : Argument(static_cast<int64_t>(x)) {}
  Argument(at::Layout x) : Argument(static_cast<int64_t>(x)) {}
  Argument(at::MemoryFormat x) : Argument(static_cast<int64_t>(x)) {}
  Argument(at::Device x) : SpecgenValue{SPECGEN_DEVICE, {static_cast<int64_t>(x.type())}, x.index()} {}
  Argument(std::string_view x) : Argument(SPECGEN_STRING, x.data(), x.size()) {}
  Argument(at::IntArrayRef x) : Argument(SPECGEN_INTS, x.data(), x.size()) {}
  Argument(c10::ArrayRef<double> x) : Argument(SPECGEN_DOUBLES, x.data(), x.size()) {}
  template <size_t N>
  Argument(const std::array<bool, N>& x) : Argument(SPECGEN_BOOLS, x.data(), N) {}
  Argument(at::TensorList x) : Argument(SPECGEN_TENSORS, nullptr) {
    for (const at::Tensor& t : x) {
      handles_.push_back(t.specgen_handle());
    }
    p = handles_.data();
    n = static_cast<int64_t>(handles_.size());
  }
  Argument(const at::OptionalIntArrayRef& x) : SpecgenValue{SPECGEN_NONE, {0}, 0} {
    if (x.has_value()) {
      *this = Argument(*x);
    }
  }
  template <class T>
  Argument(const std::optional<T>& x) : SpecgenValue{SPECGEN_NONE, {0}, 0} {
    if (x.has_value()) {
      *this = Argument(*x);
    }
  }

 private:
  Argument(SpecgenTag tag, const void* data, size_t size = 0) : SpecgenValue{tag, {}, static_cast<int64_t>(size)} {
    p = const_cast<void*>(data);
  }
  std::vector<void*> handles_; // moving it does not move its elements
};

// Results: how many values the operator leaves, and how to make R of them.
template <class R>
struct Result;
template <>
struct Result<at::Tensor> {
  static at::Tensor get(const SpecgenValue& v) {
    return at::Tensor::specgen_adopt(v.p);
  }
};
template <>
struct Result<std::vector<at::Tensor>> {
  static std::vector<at::Tensor> get(const SpecgenValue& v) {
    std::vector<at::Tensor> out;
    for (int64_t k = 0; k < v.n; ++k) {
      out.push_back(at::Tensor::specgen_adopt(static_cast<void**>(v.p)[k]));
    }
    specgen_free_array(v.p);
    return out;
  }
};
template <>
struct Result<bool> {
  static bool get(const SpecgenValue& v) {
    return v.i != 0;
  }
};
template <>
struct Result<int64_t> {
  static int64_t get(const SpecgenValue& v) {
    return v.i;
  }
};
template <>
struct Result<double> {
  static double get(const SpecgenValue& v) {
    return v.d;
  }
};
template <>
struct Result<at::Scalar> {
  static at::Scalar get(const SpecgenValue& v) {
    return at::Scalar(v);
  }
};
template <>
struct Result<at::ScalarType> {
  static at::ScalarType get(const SpecgenValue& v) {
    return static_cast<at::ScalarType>(v.i);
  }
};

template <class R>
struct Results {
  static constexpr size_t count = 1;
  static R get(const SpecgenValue* v) {
    return Result<R>::get(*v);
  }
};
template <class... R>
struct Results<std::tuple<R...>> {
  static constexpr size_t count = sizeof...(R);
  static std::tuple<R...> get(const SpecgenValue* v) {
    return std::tuple<R...>{Result<R>::get(*v++)...}; // braces: left to right
  }
};

template <size_t count, class... A>
void call_operator(void* op, SpecgenValue* results, const A&... arguments) {
  if constexpr (sizeof...(A) == 0) {
    specgen_call(op, nullptr, 0, results, count);
  } else {
    const Argument kept[] = {Argument(arguments)...};
    SpecgenValue values[sizeof...(A)];
    for (size_t k = 0; k < sizeof...(A); ++k) {
      values[k] = kept[k];
    }
    specgen_call(op, values, sizeof...(A), results, count);
  }
}

template <class R, class... A>
R invoke(void* op, const A&... arguments) {
  if constexpr (std::is_void_v<R>) {
    call_operator<0>(op, nullptr, arguments...);
  } else {
    SpecgenValue results[Results<R>::count];
    call_operator<Results<R>::count>(op, results, arguments...);
    return Results<R>::get(results);
  }
}

// An operator that writes into `target` (one of its own arguments) and returns it.
template <class T, class... A>
T& invoke_into(T& target, void* op, const A&... arguments) {
  invoke<at::Tensor>(op, arguments...);
  return target;
}

} // namespace specgen_v1
} // namespace specgen

#define SPECGEN_OPERATOR(name, overload)                                  \
  ([]() -> void* {                                                        \
    static void* const op = ::specgen_operator("aten::" name, overload);  \
    return op;                                                            \
  }())

namespace at {
inline namespace specgen_v1 {

inline Tensor& Tensor::operator=(const Scalar& value) && {
  return ::specgen::invoke_into(*this, SPECGEN_OPERATOR("fill_", "Scalar"), *this, value);
}
inline Tensor& Tensor::operator=(const Tensor& value) && {
  return ::specgen::invoke_into(*this, SPECGEN_OPERATOR("copy_", ""), *this, value, false);
}
inline Tensor& Tensor::operator=(Tensor&& value) && {
  return ::specgen::invoke_into(*this, SPECGEN_OPERATOR("copy_", ""), *this, value, false);
}
inline Tensor Tensor::toType(ScalarType type) const {
  return ::specgen::invoke<Tensor>(
      SPECGEN_OPERATOR("to", "dtype"), *this, type, false, false, std::optional<MemoryFormat>());
}
template <class T>
T Tensor::item() const {
  return ::specgen::invoke<Scalar>(SPECGEN_OPERATOR("item", ""), *this).template to<T>();
}
inline Tensor Tensor::operator~() const {
  return ::specgen::invoke<Tensor>(SPECGEN_OPERATOR("bitwise_not", ""), *this);
}
inline Tensor Tensor::operator-() const {
  return ::specgen::invoke<Tensor>(SPECGEN_OPERATOR("neg", ""), *this);
}
inline Tensor Tensor::operator[](int64_t index) const {
  return ::specgen::invoke<Tensor>(SPECGEN_OPERATOR("select", "int"), *this, int64_t{0}, index);
}

#define SPECGEN_ASSIGN(op, name, ...)                                                                               \
  inline Tensor& Tensor::operator op(const Tensor & other) {                                                        \
    return ::specgen::invoke_into(*this, SPECGEN_OPERATOR(name, "Tensor"), *this, other __VA_OPT__(, ) __VA_ARGS__); \
  }                                                                                                                 \
  inline Tensor& Tensor::operator op(const Scalar & other) {                                                        \
    return ::specgen::invoke_into(*this, SPECGEN_OPERATOR(name, "Scalar"), *this, other __VA_OPT__(, ) __VA_ARGS__); \
  }
SPECGEN_ASSIGN(+=, "add_", Scalar(1))
SPECGEN_ASSIGN(-=, "sub_", Scalar(1))
SPECGEN_ASSIGN(*=, "mul_")
SPECGEN_ASSIGN(/=, "div_")
#undef SPECGEN_ASSIGN

// Scalar on the left: torch swaps where it may (`swapped` names the operator with exchanged sides), else fills.
#define SPECGEN_BINARY(op, name, swapped, ...)                                                                 \
  inline Tensor operator op(const Tensor & x, const Tensor & y) {                                              \
    return ::specgen::invoke<Tensor>(SPECGEN_OPERATOR(name, "Tensor"), x, y __VA_OPT__(, ) __VA_ARGS__);       \
  }                                                                                                            \
  inline Tensor operator op(const Tensor & x, const Scalar & y) {                                              \
    return ::specgen::invoke<Tensor>(SPECGEN_OPERATOR(name, "Scalar"), x, y __VA_OPT__(, ) __VA_ARGS__);       \
  }                                                                                                            \
  inline Tensor operator op(const Scalar & x, const Tensor & y) {                                              \
    return ::specgen::invoke<Tensor>(SPECGEN_OPERATOR(swapped, "Scalar"), y, x __VA_OPT__(, ) __VA_ARGS__);    \
  }
#define SPECGEN_BINARY_FILLED(op, name, ...)                                                                   \
  inline Tensor operator op(const Tensor & x, const Tensor & y) {                                              \
    return ::specgen::invoke<Tensor>(SPECGEN_OPERATOR(name, "Tensor"), x, y __VA_OPT__(, ) __VA_ARGS__);       \
  }                                                                                                            \
  inline Tensor operator op(const Tensor & x, const Scalar & y) {                                              \
    return ::specgen::invoke<Tensor>(SPECGEN_OPERATOR(name, "Scalar"), x, y __VA_OPT__(, ) __VA_ARGS__);       \
  }                                                                                                            \
  inline Tensor operator op(const Scalar & x, const Tensor & y) {                                              \
    const std::optional<ScalarType> dtype;                                                                     \
    Tensor filled = ::specgen::invoke<Tensor>(                                                                 \
        SPECGEN_OPERATOR("empty_like", ""),                                                                    \
        y,                                                                                                     \
        dtype,                                                                                                 \
        std::optional<Layout>(),                                                                               \
        std::optional<Device>(),                                                                               \
        std::optional<bool>(),                                                                                 \
        std::optional<MemoryFormat>(MemoryFormat::Preserve));                                                  \
    ::specgen::invoke_into(filled, SPECGEN_OPERATOR("fill_", "Scalar"), filled, x);                            \
    ::specgen::invoke_into(filled, SPECGEN_OPERATOR(name "_", "Tensor"), filled, y __VA_OPT__(, ) __VA_ARGS__); \
    return filled;                                                                                             \
  }
SPECGEN_BINARY(+, "add", "add", Scalar(1))
SPECGEN_BINARY(*, "mul", "mul")
SPECGEN_BINARY_FILLED(-, "sub", Scalar(1))
SPECGEN_BINARY_FILLED(/, "div")
SPECGEN_BINARY(<, "lt", "gt")
SPECGEN_BINARY(<=, "le", "ge")
SPECGEN_BINARY(>, "gt", "lt")
SPECGEN_BINARY(>=, "ge", "le")
SPECGEN_BINARY(==, "eq", "eq")
SPECGEN_BINARY(!=, "ne", "ne")
#undef SPECGEN_BINARY
#undef SPECGEN_BINARY_FILLED

// Generated: methods of Tensor, then functions of namespace at.
#define SPECGEN_DEFINE_METHODS
#include <specgen_methods.inc>
#undef SPECGEN_DEFINE_METHODS
#include <specgen_functions.inc>

} // namespace specgen_v1
} // namespace at
