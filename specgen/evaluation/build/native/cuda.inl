// Streams, devices and checks of a torch with CUDA.

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

void* specgen_cuda_stream(int32_t device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}
void* specgen_cuda_blas_handle() {
  return at::cuda::getCurrentCUDABlasHandle();
}
void* specgen_cuda_properties(int32_t device) {
  return device < 0 ? at::cuda::getCurrentDeviceProperties()
                    : at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
}
int32_t specgen_cuda_current_device() {
  return c10::cuda::current_device();
}
void specgen_cuda_set_device(int32_t device) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
}
int32_t specgen_cuda_device_count() {
  return c10::cuda::device_count();
}
void specgen_cuda_check(int32_t error, const char* function, const char* file, uint32_t line) {
  c10::cuda::c10_cuda_check_implementation(error, file, function, line, true);
}
