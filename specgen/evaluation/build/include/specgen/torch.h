// namespace torch: what it adds to namespace at. Names, factories with requires_grad, guards, at::parallel_for.
#pragma once

#include <specgen/dispatch.h>
#include <specgen/operators.h>

namespace at {
inline namespace specgen_v1 {

inline int get_num_threads() {
  return specgen_get_num_threads();
}
inline int get_thread_num() {
  return specgen_get_thread_num();
}
inline bool in_parallel_region() {
  return specgen_in_parallel_region();
}

// Parallel only where the source is compiled with OpenMP, as torch's inline version is.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  if (begin >= end) {
    return;
  }
#ifdef _OPENMP
  specgen_parallel_for(
      begin,
      end,
      grain,
      [](void* context, int64_t b, int64_t e) { (*static_cast<const F*>(context))(b, e); },
      const_cast<void*>(static_cast<const void*>(&f)));
#else
  static_cast<void>(grain);
  f(begin, end);
#endif
}

// No code of the façade's own runs inside it, so there is nothing to exclude: factories see the dispatcher's result.
struct AutoDispatchBelowADInplaceOrView {
  AutoDispatchBelowADInplaceOrView() {}
};

class AutoGradMode {
 public:
  explicit AutoGradMode(bool enabled) : guard_(specgen_grad_mode_enter(enabled)) {}
  AutoGradMode(const AutoGradMode&) = delete;
  AutoGradMode& operator=(const AutoGradMode&) = delete;
  ~AutoGradMode() {
    specgen_grad_mode_leave(guard_);
  }

 private:
  void* guard_;
};
class NoGradGuard : public AutoGradMode {
 public:
  NoGradGuard() : AutoGradMode(false) {}
};

} // namespace specgen_v1
} // namespace at

namespace c10 {
inline namespace specgen_v1 {

// Makes a device the current one for a scope; on the CPU there is nothing to do.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device)
      : guard_(specgen_device_guard_enter(static_cast<int32_t>(device.type()), device.index())) {}
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    specgen_device_guard_leave(guard_);
  }

 private:
  void* guard_;
};
class OptionalDeviceGuard {
 public:
  OptionalDeviceGuard() = default;
  explicit OptionalDeviceGuard(Device device) {
    guard_.emplace(device);
  }
  explicit OptionalDeviceGuard(std::optional<Device> device) {
    if (device.has_value()) {
      guard_.emplace(*device);
    }
  }

 private:
  std::optional<DeviceGuard> guard_;
};

} // namespace specgen_v1
} // namespace c10

namespace at {
using c10::DeviceGuard;
using c10::OptionalDeviceGuard;
} // namespace at

namespace torch {
using namespace at; // NOLINT: as torch does

inline namespace specgen_v1 {

using Dtype = at::ScalarType;
using at::AutoGradMode;
using at::NoGradGuard;

constexpr auto kUInt8 = at::kByte;
constexpr auto kInt8 = at::kChar;
constexpr auto kInt16 = at::kShort;
constexpr auto kInt32 = at::kInt;
constexpr auto kInt64 = at::kLong;
constexpr auto kFloat16 = at::kHalf;
constexpr auto kFloat32 = at::kFloat;
constexpr auto kFloat64 = at::kDouble;

namespace autograd {
inline at::Tensor make_variable(at::Tensor data, bool requires_grad) {
  if (requires_grad) {
    data.set_requires_grad(true);
  }
  return data;
}
} // namespace autograd

namespace specgen_detail {
inline SpecgenOptions flatten(const TensorOptions& o) {
  SpecgenOptions f{-1, -1, -1, -1, -1, -1, -1};
  if (const auto dtype = c10::optTypeMetaToScalarType(o.dtype_opt())) {
    f.dtype = static_cast<int32_t>(*dtype);
  }
  if (o.has_device()) {
    f.device_type = static_cast<int32_t>(o.device().type());
    f.device_index = o.device().index();
  }
  f.requires_grad = o.requires_grad_opt() ? static_cast<int32_t>(o.requires_grad()) : -1;
  f.pinned_memory = o.pinned_memory_opt() ? static_cast<int32_t>(o.pinned_memory()) : -1;
  return f;
}
} // namespace specgen_detail

inline at::Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& options = {}) {
  const SpecgenOptions f = specgen_detail::flatten(options);
  return Tensor::specgen_adopt(specgen_from_blob(data, sizes.data(), sizes.size(), nullptr, &f));
}
inline at::Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const TensorOptions& options = {}) {
  SPECGEN_REQUIRE(sizes.size() == strides.size(), "number of sizes and strides must match");
  const SpecgenOptions f = specgen_detail::flatten(options);
  return Tensor::specgen_adopt(specgen_from_blob(data, sizes.data(), sizes.size(), strides.data(), &f));
}

#include <specgen_factories.inc>

} // namespace specgen_v1
} // namespace torch
