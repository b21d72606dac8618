// ATen/cuda and c10/cuda: streams, guards, launch checks. Included by the stubs of those headers only.
#pragma once

#include <specgen/facade.h>

#include <cuda_runtime.h>
#ifdef SPECGEN_WITH_CUBLAS
#include <cublas_v2.h>
#endif

#pragma GCC visibility push(hidden)
namespace c10 {
namespace cuda {
inline namespace specgen_v1 {

class CUDAStream {
 public:
  CUDAStream(cudaStream_t stream, DeviceIndex device) : stream_(stream), device_(device) {}
  cudaStream_t stream() const {
    return stream_;
  }
  operator cudaStream_t() const {
    return stream_;
  }
  DeviceIndex device_index() const {
    return device_;
  }
  Device device() const {
    return Device(kCUDA, device_);
  }
  void synchronize() const {
    ::specgen_cuda_check(
        static_cast<int32_t>(cudaStreamSynchronize(stream_)), __func__, __FILE__, static_cast<uint32_t>(__LINE__));
  }

 private:
  cudaStream_t stream_;
  DeviceIndex device_;
};

inline DeviceIndex current_device() {
  return static_cast<DeviceIndex>(specgen_cuda_current_device());
}
inline void set_device(DeviceIndex device) {
  specgen_cuda_set_device(device);
}
inline DeviceIndex device_count() {
  return static_cast<DeviceIndex>(specgen_cuda_device_count());
}
inline CUDAStream getCurrentCUDAStream(DeviceIndex device = -1) {
  const DeviceIndex index = device < 0 ? current_device() : device;
  return CUDAStream(static_cast<cudaStream_t>(specgen_cuda_stream(index)), index);
}

class CUDAGuard : public DeviceGuard {
 public:
  explicit CUDAGuard(DeviceIndex index) : DeviceGuard(Device(kCUDA, index)) {}
  explicit CUDAGuard(Device device) : DeviceGuard(checked(device)) {}

 private:
  static Device checked(Device device) {
    SPECGEN_REQUIRE(device.is_cuda(), "Expected a CUDA device, but got ", device);
    return device;
  }
};
class OptionalCUDAGuard {
 public:
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(std::optional<Device> device) {
    if (device.has_value()) {
      guard_.emplace(*device);
    }
  }
  explicit OptionalCUDAGuard(std::optional<DeviceIndex> index) {
    if (index.has_value()) {
      guard_.emplace(*index);
    }
  }

 private:
  std::optional<CUDAGuard> guard_;
};

} // namespace specgen_v1
} // namespace cuda
} // namespace c10

namespace at {
namespace cuda {
using namespace c10::cuda; // NOLINT: as torch does

inline namespace specgen_v1 {
inline cudaDeviceProp* getCurrentDeviceProperties() {
  return static_cast<cudaDeviceProp*>(specgen_cuda_properties(-1));
}
inline cudaDeviceProp* getDeviceProperties(DeviceIndex device) {
  return static_cast<cudaDeviceProp*>(specgen_cuda_properties(device));
}
#ifdef SPECGEN_WITH_CUBLAS
inline cublasHandle_t getCurrentCUDABlasHandle() {
  return static_cast<cublasHandle_t>(specgen_cuda_blas_handle());
}
#endif
} // namespace specgen_v1
} // namespace cuda
} // namespace at
#pragma GCC visibility pop

#define C10_CUDA_CHECK(expression)                                                                        \
  do {                                                                                                    \
    const cudaError_t specgen_error = expression;                                                         \
    ::specgen_cuda_check(                                                                                 \
        static_cast<int32_t>(specgen_error), __func__, __FILE__, static_cast<uint32_t>(__LINE__));        \
  } while (0)
#define AT_CUDA_CHECK(expression) C10_CUDA_CHECK(expression)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
