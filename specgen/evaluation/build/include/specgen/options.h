// Layout, memory format and c10::TensorOptions.
#pragma once

#include <specgen/array_ref.h>
#include <specgen/device.h>

namespace c10 {
inline namespace specgen_v1 {

enum class Layout : int8_t { Strided = 0, Sparse = 1 };
constexpr Layout kStrided = Layout::Strided;
constexpr Layout kSparse = Layout::Sparse;

enum class MemoryFormat : int8_t { Contiguous = 0, Preserve = 1, ChannelsLast = 2, ChannelsLast3d = 3 };

struct TensorOptions {
  TensorOptions() = default;
  TensorOptions(Layout layout) : layout_(layout) {}
  template <class T, class = std::enable_if_t<std::is_same_v<std::decay_t<T>, Device>>>
  TensorOptions(T&& device) : device_(device) {}
  template <class... A, class = std::enable_if_t<std::is_constructible_v<Device, A&&...>>>
  TensorOptions(A&&... args) : device_(Device(std::forward<A>(args)...)) {}
  TensorOptions(caffe2::TypeMeta dtype) : dtype_(dtype) {}
  TensorOptions(ScalarType dtype) : dtype_(scalarTypeToTypeMeta(dtype)) {}
  TensorOptions(MemoryFormat format) : memory_format_(format) {}

  [[nodiscard]] TensorOptions device(std::optional<Device> value) const {
    return with([&](TensorOptions& r) { r.device_ = value; });
  }
  template <class... A>
  [[nodiscard]] TensorOptions device(A&&... args) const {
    return device(std::optional<Device>(std::in_place, std::forward<A>(args)...));
  }
  [[nodiscard]] TensorOptions device_index(DeviceIndex index) const {
    return device(DeviceType::CUDA, index);
  }
  [[nodiscard]] TensorOptions dtype(std::optional<caffe2::TypeMeta> value) const {
    return with([&](TensorOptions& r) { r.dtype_ = value; });
  }
  [[nodiscard]] TensorOptions dtype(std::optional<ScalarType> value) const {
    return with([&](TensorOptions& r) {
      r.dtype_ = value ? std::make_optional(scalarTypeToTypeMeta(*value)) : std::nullopt;
    });
  }
  template <class T>
  TensorOptions& dtype() {
    dtype_ = caffe2::TypeMeta::Make<T>();
    return *this;
  }
  [[nodiscard]] TensorOptions layout(std::optional<Layout> value) const {
    return with([&](TensorOptions& r) { r.layout_ = value; });
  }
  [[nodiscard]] TensorOptions requires_grad(std::optional<bool> value) const {
    return with([&](TensorOptions& r) { r.requires_grad_ = value; });
  }
  [[nodiscard]] TensorOptions pinned_memory(std::optional<bool> value) const {
    return with([&](TensorOptions& r) { r.pinned_memory_ = value; });
  }
  [[nodiscard]] TensorOptions memory_format(std::optional<MemoryFormat> value) const {
    return with([&](TensorOptions& r) { r.memory_format_ = value; });
  }

  Device device() const {
    return device_.value_or(Device(kCPU));
  }
  bool has_device() const {
    return device_.has_value();
  }
  std::optional<Device> device_opt() const {
    return device_;
  }
  DeviceIndex device_index() const {
    return device().index();
  }
  caffe2::TypeMeta dtype() const {
    return dtype_.value_or(scalarTypeToTypeMeta(static_cast<ScalarType>(specgen_default_dtype())));
  }
  bool has_dtype() const {
    return dtype_.has_value();
  }
  std::optional<caffe2::TypeMeta> dtype_opt() const {
    return dtype_;
  }
  Layout layout() const {
    return layout_.value_or(kStrided);
  }
  bool has_layout() const {
    return layout_.has_value();
  }
  std::optional<Layout> layout_opt() const {
    return layout_;
  }
  bool requires_grad() const {
    return requires_grad_.value_or(false);
  }
  bool has_requires_grad() const {
    return requires_grad_.has_value();
  }
  std::optional<bool> requires_grad_opt() const {
    return requires_grad_;
  }
  bool pinned_memory() const {
    return pinned_memory_.value_or(false);
  }
  std::optional<bool> pinned_memory_opt() const {
    return pinned_memory_;
  }
  bool has_memory_format() const {
    return memory_format_.has_value();
  }
  std::optional<MemoryFormat> memory_format_opt() const {
    return memory_format_;
  }

 private:
  template <class F>
  TensorOptions with(F change) const {
    TensorOptions r = *this;
    change(r);
    return r;
  }

  std::optional<Device> device_;
  std::optional<caffe2::TypeMeta> dtype_;
  std::optional<Layout> layout_;
  std::optional<MemoryFormat> memory_format_;
  std::optional<bool> requires_grad_;
  std::optional<bool> pinned_memory_;
};

inline TensorOptions dtype(caffe2::TypeMeta value) {
  return TensorOptions().dtype(value);
}
inline TensorOptions dtype(ScalarType value) {
  return TensorOptions().dtype(value);
}
template <class T>
TensorOptions dtype() {
  return dtype(caffe2::TypeMeta::Make<T>());
}
inline TensorOptions layout(Layout value) {
  return TensorOptions().layout(value);
}
inline TensorOptions device(Device value) {
  return TensorOptions().device(value);
}
inline TensorOptions device_index(DeviceIndex index) {
  return TensorOptions().device_index(index);
}
inline TensorOptions requires_grad(bool value = true) {
  return TensorOptions().requires_grad(value);
}
inline TensorOptions memory_format(MemoryFormat value) {
  return TensorOptions().memory_format(value);
}

// Used by the generated operator calls.
inline std::optional<ScalarType> optTypeMetaToScalarType(std::optional<caffe2::TypeMeta> m) {
  return m ? std::make_optional(m->toScalarType()) : std::nullopt;
}
namespace impl {
inline std::optional<MemoryFormat> check_tensor_options_and_extract_memory_format(
    const TensorOptions& options, std::optional<MemoryFormat> format) {
  SPECGEN_REQUIRE(
      !options.requires_grad_opt().has_value() || !options.requires_grad_opt().value(),
      "Operators taking TensorOptions cannot take a TensorOptions with options.requires_grad set as true. This isn't "
      "implemented yet.");
  SPECGEN_REQUIRE(
      !(options.has_memory_format() && format.has_value()),
      "Cannot set memory_format both in TensorOptions and explicit argument; please delete the redundant setter.");
  return format.has_value() ? format : options.memory_format_opt();
}
} // namespace impl

} // namespace specgen_v1
} // namespace c10
