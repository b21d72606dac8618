// The Python side: pybind11's module_ and PYBIND11_MODULE, as far as a candidate's bindings use them.
//
// A function is described by type codes and a thunk. The support library converts Python objects with pybind11's and
// torch's own casters and registers the function with pybind11 itself, so overloads, messages and docstrings are the
// real ones. Keyword arguments, classes and py::object are not here: such sources go to the stock route.
#pragma once

#include <specgen/torch.h>


namespace specgen {
inline namespace specgen_v1 {

// ------------------------------------------------------------------------------------------------- argument types

template <class T>
struct From; // no definition: the type is left to the stock route

template <class T>
constexpr const char* number_code() {
  if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_same_v<T, float>) {
    return "float";
  } else if constexpr (std::is_same_v<T, double>) {
    return "double";
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 1 ? "int8" : sizeof(T) == 2 ? "int16" : sizeof(T) == 4 ? "int32" : "int64";
  } else {
    return sizeof(T) == 1 ? "uint8" : sizeof(T) == 2 ? "uint16" : sizeof(T) == 4 ? "uint32" : "uint64";
  }
}

template <class T>
constexpr bool is_number = std::is_same_v<T, bool> || std::is_same_v<T, float> || std::is_same_v<T, double> ||
    (std::is_integral_v<T> && !std::is_same_v<T, char> && !std::is_same_v<T, wchar_t> &&
     !std::is_same_v<T, char16_t> && !std::is_same_v<T, char32_t>);

template <class T>
struct Number {
  static std::string code() {
    return number_code<T>();
  }
  static T get(const SpecgenValue& v) {
    if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(v.d);
    } else {
      return static_cast<T>(v.i);
    }
  }
};
#define SPECGEN_NUMBER(T) \
  template <>             \
  struct From<T> : Number<T> {};
SPECGEN_NUMBER(bool)
SPECGEN_NUMBER(signed char)
SPECGEN_NUMBER(unsigned char)
SPECGEN_NUMBER(short)
SPECGEN_NUMBER(unsigned short)
SPECGEN_NUMBER(int)
SPECGEN_NUMBER(unsigned int)
SPECGEN_NUMBER(long)
SPECGEN_NUMBER(unsigned long)
SPECGEN_NUMBER(long long)
SPECGEN_NUMBER(unsigned long long)
SPECGEN_NUMBER(float)
SPECGEN_NUMBER(double)
#undef SPECGEN_NUMBER

template <>
struct From<at::Tensor> {
  static std::string code() {
    return "tensor";
  }
  static at::Tensor get(const SpecgenValue& v) {
    return at::Tensor::specgen_borrow(v.p);
  }
};
template <>
struct From<std::string> {
  static std::string code() {
    return "string";
  }
  static std::string get(const SpecgenValue& v) {
    return std::string(static_cast<const char*>(v.p), static_cast<size_t>(v.n));
  }
};
template <>
struct From<at::ScalarType> {
  static std::string code() {
    return "dtype";
  }
  static at::ScalarType get(const SpecgenValue& v) {
    return static_cast<at::ScalarType>(v.i);
  }
};
template <>
struct From<at::Device> {
  static std::string code() {
    return "device";
  }
  static at::Device get(const SpecgenValue& v) {
    return at::Device(static_cast<at::DeviceType>(v.i), static_cast<at::DeviceIndex>(v.n));
  }
};
template <>
struct From<at::IntArrayRef> {
  static std::string code() {
    return "int_array_ref";
  }
  static at::IntArrayRef get(const SpecgenValue& v) {
    return at::IntArrayRef(static_cast<const int64_t*>(v.p), static_cast<size_t>(v.n));
  }
};
template <>
struct From<std::vector<at::Tensor>> {
  static std::string code() {
    return "vector<tensor>";
  }
  static std::vector<at::Tensor> get(const SpecgenValue& v) {
    std::vector<at::Tensor> out;
    for (int64_t k = 0; k < v.n; ++k) {
      out.push_back(at::Tensor::specgen_borrow(static_cast<void**>(v.p)[k]));
    }
    return out;
  }
};
template <class T>
struct From<std::vector<T>> {
  static_assert(
      std::is_same_v<T, int64_t> || std::is_same_v<T, int> || std::is_same_v<T, float> || std::is_same_v<T, double>,
      "vectors of this type are left to the stock route");
  static std::string code() {
    return std::string("vector<") + number_code<T>() + ">";
  }
  static std::vector<T> get(const SpecgenValue& v) {
    const T* data = static_cast<const T*>(v.p);
    return std::vector<T>(data, data + v.n);
  }
};
template <class T>
struct From<std::optional<T>> {
  static std::string code() {
    return "optional<" + From<T>::code() + ">";
  }
  static std::optional<T> get(const SpecgenValue& v) {
    return v.tag == SPECGEN_NONE ? std::optional<T>() : std::optional<T>(From<T>::get(v));
  }
};

// --------------------------------------------------------------------------------------------------- result types

template <class T>
struct To;

inline SpecgenValue make_list(SpecgenTag tag, size_t size) {
  SpecgenValue v{tag, {0}, static_cast<int64_t>(size)};
  v.p = new SpecgenValue[size + 1];
  return v;
}

template <class T>
struct ToNumber {
  static std::string code() {
    return number_code<T>();
  }
  static SpecgenValue put(T x) {
    SpecgenValue v{SPECGEN_INT, {0}, std::is_unsigned_v<T> ? 1 : 0};
    if constexpr (std::is_same_v<T, bool>) {
      v.tag = SPECGEN_BOOL;
      v.i = x ? 1 : 0;
    } else if constexpr (std::is_floating_point_v<T>) {
      v.tag = SPECGEN_DOUBLE;
      v.d = static_cast<double>(x);
    } else {
      v.i = static_cast<int64_t>(x);
    }
    return v;
  }
};
template <class T>
struct To : ToNumber<T> {
  static_assert(is_number<T>, "results of this type are left to the stock route");
};
template <>
struct To<void> {
  static std::string code() {
    return "none";
  }
};
template <>
struct To<at::Tensor> {
  static std::string code() {
    return "tensor";
  }
  static SpecgenValue put(at::Tensor t) {
    SpecgenValue v{SPECGEN_TENSOR, {0}, 0};
    v.p = t.specgen_give_up();
    return v;
  }
};
template <>
struct To<std::string> {
  static std::string code() {
    return "string";
  }
  static SpecgenValue put(const std::string& s) {
    SpecgenValue v{SPECGEN_STRING, {0}, static_cast<int64_t>(s.size())};
    v.p = new char[s.size() + 1];
    __builtin_memcpy(v.p, s.data(), s.size());
    return v;
  }
};
template <class T>
struct To<std::vector<T>> {
  static std::string code() {
    return "list<" + To<T>::code() + ">";
  }
  static SpecgenValue put(std::vector<T> items) {
    SpecgenValue v = make_list(SPECGEN_LIST, items.size());
    for (size_t k = 0; k < items.size(); ++k) {
      static_cast<SpecgenValue*>(v.p)[k] = To<T>::put(std::move(items[k]));
    }
    return v;
  }
};
template <class... T>
struct To<std::tuple<T...>> {
  static std::string code() {
    std::string out = "tuple<";
    ((out += To<T>::code(), out += ','), ...);
    out.back() = '>';
    return out;
  }
  static SpecgenValue put(std::tuple<T...> items) {
    SpecgenValue v = make_list(SPECGEN_TUPLE, sizeof...(T));
    auto* out = static_cast<SpecgenValue*>(v.p);
    std::apply([&](auto&... item) { ((*out++ = To<T>::put(std::move(item))), ...); }, items);
    return v;
  }
};
template <class A, class B>
struct To<std::pair<A, B>> {
  static std::string code() {
    return To<std::tuple<A, B>>::code();
  }
  static SpecgenValue put(std::pair<A, B> items) {
    return To<std::tuple<A, B>>::put(std::tuple<A, B>(std::move(items.first), std::move(items.second)));
  }
};
template <class T>
struct To<std::optional<T>> {
  static std::string code() {
    return "optional<" + To<T>::code() + ">";
  }
  static SpecgenValue put(std::optional<T> item) {
    return item.has_value() ? To<T>::put(std::move(*item)) : SpecgenValue{SPECGEN_NONE, {0}, 0};
  }
};

// ------------------------------------------------------------------------------------------------------ functions

template <class T>
using Bare = std::remove_cv_t<std::remove_reference_t<T>>;

template <class F, class R, class... A>
struct Bound {
  static std::string codes() {
    std::string out;
    ((out += From<Bare<A>>::code(), out += ';'), ...);
    return out;
  }
  template <size_t... K>
  static void call(F& function, const SpecgenValue* in, SpecgenValue* out, std::index_sequence<K...>) {
    std::tuple<Bare<A>...> arguments{From<Bare<A>>::get(in[K])...};
    if constexpr (std::is_void_v<R>) {
      function(static_cast<A&&>(std::get<K>(arguments))...);
      out->tag = SPECGEN_NONE;
    } else {
      *out = To<Bare<R>>::put(function(static_cast<A&&>(std::get<K>(arguments))...));
    }
  }
  static void thunk(void* function, const SpecgenValue* in, SpecgenValue* out) {
    call(*static_cast<F*>(function), in, out, std::index_sequence_for<A...>{});
  }
  static void define(void* module, const char* name, F function, int32_t wrap, const char* doc) {
    specgen_define(
        module,
        name,
        codes().c_str(),
        To<Bare<R>>::code().c_str(),
        &thunk,
        new F(std::move(function)),
        [](void* f) { delete static_cast<F*>(f); },
        wrap,
        doc);
  }
};

template <class F>
struct Signature : Signature<decltype(&F::operator())> {};
template <class R, class... A>
struct Signature<R (*)(A...)> {
  template <class F>
  using Binding = Bound<F, R, A...>;
};
template <class C, class R, class... A>
struct Signature<R (C::*)(A...) const> : Signature<R (*)(A...)> {};
template <class C, class R, class... A>
struct Signature<R (C::*)(A...)> : Signature<R (*)(A...)> {};
template <class R, class... A>
struct Signature<R (*)(A...) noexcept> : Signature<R (*)(A...)> {};

template <class F>
struct Wrapped {
  F function;
  int32_t mode;
};

} // namespace specgen_v1
} // namespace specgen

namespace torch {
inline namespace specgen_v1 {

// Translates exceptions as torch's own bindings do.
template <class F>
auto wrap_pybind_function(F&& f) {
  return ::specgen::Wrapped<std::decay_t<F>>{std::forward<F>(f), 1};
}
template <class F>
auto wrap_pybind_function_no_gil(F&& f) {
  return ::specgen::Wrapped<std::decay_t<F>>{std::forward<F>(f), 2};
}

} // namespace specgen_v1
} // namespace torch

namespace pybind11 {
inline namespace specgen_v1 {

class module_ {
 public:
  explicit module_(void* module) : module_object_(module) {}

  template <class F>
  module_& def(const char* name, F&& f, const char* doc = nullptr) {
    return define(name, std::decay_t<F>(std::forward<F>(f)), 0, doc);
  }
  template <class F>
  module_& def(const char* name, ::specgen::Wrapped<F> wrapped, const char* doc = nullptr) {
    return define(name, std::move(wrapped.function), wrapped.mode, doc);
  }

  // For `m.doc() = "…"`.
  class Doc {
   public:
    explicit Doc(void* module) : module_object_(module) {}
    const Doc& operator=(const char* text) const {
      specgen_set_doc(module_object_, text);
      return *this;
    }

   private:
    void* module_object_;
  };
  Doc doc() const {
    return Doc(module_object_);
  }

 private:
  template <class F>
  module_& define(const char* name, F function, int32_t wrap, const char* doc) {
    ::specgen::Signature<F>::template Binding<F>::define(module_object_, name, std::move(function), wrap, doc);
    return *this;
  }
  void* module_object_;
};
using module = module_;

} // namespace specgen_v1
} // namespace pybind11
namespace py = pybind11;

#define SPECGEN_CONCAT_(a, b) a##b
#define SPECGEN_CONCAT(a, b) SPECGEN_CONCAT_(a, b)
#define PYBIND11_MODULE(name, variable)                                                       \
  static void SPECGEN_CONCAT(specgen_fill_, name)(::pybind11::module_&);                      \
  SPECGEN_EXPORT void* SPECGEN_CONCAT(PyInit_, name)() {                                      \
    return ::specgen_create_module(SPECGEN_STRINGIZE(name), [](void* specgen_module) {        \
      ::pybind11::module_ m(specgen_module);                                                  \
      SPECGEN_CONCAT(specgen_fill_, name)(m);                                                 \
    });                                                                                       \
  }                                                                                           \
  static void SPECGEN_CONCAT(specgen_fill_, name)(::pybind11::module_ & variable)
