// The C interface between a candidate's library (the façade) and the support library (the real ATen).
//
// Both sides include this file. A tensor crosses as an opaque handle that owns or borrows one reference; everything
// else crosses as a tagged value. Errors cross as C++ exceptions. Not here: anything of the real torch.
#pragma once

#include <cstddef>
#include <cstdint>

#define SPECGEN_EXPORT extern "C" __attribute__((visibility("default")))

enum SpecgenTag : int32_t {
  SPECGEN_NONE = 0,
  SPECGEN_TENSOR,           // handle; null is an undefined tensor
  SPECGEN_INT,              // i
  SPECGEN_DOUBLE,           // d
  SPECGEN_BOOL,             // i
  SPECGEN_INTS,             // pointer to n int64_t
  SPECGEN_DOUBLES,          // pointer to n double
  SPECGEN_BOOLS,            // pointer to n bool
  SPECGEN_TENSORS,          // pointer to n handles
  SPECGEN_OPTIONAL_TENSORS, // the same, where null means None
  SPECGEN_STRING,           // pointer to n characters
  SPECGEN_DEVICE,           // i: type, n: index
  SPECGEN_ARRAY,            // pointer to n elements of the type both sides agreed on (arguments only)
  SPECGEN_LIST,             // pointer to n values (results only, owned by the receiver)
  SPECGEN_TUPLE,            // the same
};

struct SpecgenValue {
  SpecgenTag tag;
  union {
    int64_t i;
    double d;
    void* p;
  };
  int64_t n;
};

// -1 where an option is not given.
struct SpecgenOptions {
  int32_t dtype, layout, device_type, device_index, requires_grad, pinned_memory, memory_format;
};

enum SpecgenError : int32_t {
  SPECGEN_ERROR,
  SPECGEN_INDEX_ERROR,
  SPECGEN_VALUE_ERROR,
  SPECGEN_TYPE_ERROR,
  SPECGEN_NOT_IMPLEMENTED_ERROR,
};

// A bound function: reads its arguments, calls the candidate's function, writes one result.
using SpecgenThunk = void (*)(void* function, const SpecgenValue* arguments, SpecgenValue* result);

// tensors
SPECGEN_EXPORT void specgen_retain(void* tensor);
SPECGEN_EXPORT void specgen_release(void* tensor);
SPECGEN_EXPORT int64_t specgen_use_count(void* tensor);
SPECGEN_EXPORT int64_t specgen_dim(void* tensor);
SPECGEN_EXPORT int64_t specgen_numel(void* tensor);
SPECGEN_EXPORT int64_t specgen_size(void* tensor, int64_t dim);
SPECGEN_EXPORT int64_t specgen_stride(void* tensor, int64_t dim);
SPECGEN_EXPORT const int64_t* specgen_sizes(void* tensor, size_t* count);
SPECGEN_EXPORT const int64_t* specgen_strides(void* tensor, size_t* count);
SPECGEN_EXPORT int64_t specgen_storage_offset(void* tensor);
SPECGEN_EXPORT int64_t specgen_itemsize(void* tensor);
SPECGEN_EXPORT int64_t specgen_nbytes(void* tensor);
SPECGEN_EXPORT int32_t specgen_dtype(void* tensor);
SPECGEN_EXPORT int32_t specgen_layout(void* tensor);
SPECGEN_EXPORT void specgen_device(void* tensor, int32_t* type, int32_t* index);
SPECGEN_EXPORT bool specgen_is_contiguous(void* tensor, int32_t memory_format);
SPECGEN_EXPORT int32_t specgen_suggest_memory_format(void* tensor);
SPECGEN_EXPORT bool specgen_is_alias_of(void* tensor, void* other);
SPECGEN_EXPORT bool specgen_requires_grad(void* tensor);
SPECGEN_EXPORT void specgen_set_requires_grad(void* tensor, bool value);
SPECGEN_EXPORT void* specgen_data(void* tensor, int32_t dtype, bool writable); // dtype -1: any
SPECGEN_EXPORT void* specgen_contiguous(void* tensor, int32_t memory_format);
SPECGEN_EXPORT void* specgen_data_of(void* tensor); // Tensor::data(): detached, same storage
SPECGEN_EXPORT void* specgen_to_device(void* tensor, int32_t type);
SPECGEN_EXPORT void* specgen_from_blob(
    void* data, const int64_t* sizes, size_t ndim, const int64_t* strides, const SpecgenOptions* options);

// names, defaults, checks
SPECGEN_EXPORT const char* specgen_scalar_type_name(int32_t dtype);
SPECGEN_EXPORT const char* specgen_type_name(int32_t dtype);
SPECGEN_EXPORT int64_t specgen_element_size(int32_t dtype);
SPECGEN_EXPORT const char* specgen_device_type_name(int32_t type);
SPECGEN_EXPORT void specgen_parse_device(const char* text, int32_t* type, int32_t* index);
SPECGEN_EXPORT void specgen_check_device(int32_t type, int32_t index);
SPECGEN_EXPORT int32_t specgen_default_dtype();
SPECGEN_EXPORT __attribute__((noreturn)) void specgen_raise(
    SpecgenError kind, const char* function, const char* file, uint32_t line, const char* message);
SPECGEN_EXPORT __attribute__((noreturn)) void specgen_raise_internal(
    const char* function, const char* file, uint32_t line, const char* condition, const char* message);
SPECGEN_EXPORT void specgen_warn(const char* function, const char* file, uint32_t line, const char* message);
SPECGEN_EXPORT bool specgen_warn_always();

// operators
SPECGEN_EXPORT void* specgen_operator(const char* name, const char* overload);
SPECGEN_EXPORT void specgen_call(
    void* op, const SpecgenValue* arguments, size_t count, SpecgenValue* results, size_t result_count);
SPECGEN_EXPORT void specgen_free_array(void* array); // of SPECGEN_TENSORS in a result
SPECGEN_EXPORT void* specgen_grad_mode_enter(bool enabled);
SPECGEN_EXPORT void specgen_grad_mode_leave(void* guard);
SPECGEN_EXPORT void specgen_parallel_for(
    int64_t begin, int64_t end, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context);
SPECGEN_EXPORT int32_t specgen_get_num_threads();
SPECGEN_EXPORT int32_t specgen_get_thread_num();
SPECGEN_EXPORT bool specgen_in_parallel_region();

// Python module
SPECGEN_EXPORT void* specgen_create_module(const char* name, void (*fill)(void* module));
SPECGEN_EXPORT void specgen_define(
    void* module,
    const char* name,
    const char* arguments, // type codes, each ended by ';'
    const char* result,    // one type code
    SpecgenThunk thunk,
    void* function,
    void (*destroy)(void* function),
    int32_t wrap, // 0: pybind11's own translation of exceptions, 1: torch's, 2: torch's without the GIL
    const char* doc);
SPECGEN_EXPORT void specgen_set_doc(void* module, const char* doc);

// CUDA; a support library for a torch without CUDA does not have them
SPECGEN_EXPORT void* specgen_cuda_stream(int32_t device); // -1: current device
SPECGEN_EXPORT void* specgen_cuda_blas_handle();
SPECGEN_EXPORT void* specgen_cuda_properties(int32_t device); // -1: current device
SPECGEN_EXPORT int32_t specgen_cuda_current_device();
SPECGEN_EXPORT void specgen_cuda_set_device(int32_t device);
SPECGEN_EXPORT int32_t specgen_cuda_device_count();
SPECGEN_EXPORT void specgen_cuda_check(int32_t error, const char* function, const char* file, uint32_t line);
SPECGEN_EXPORT void* specgen_device_guard_enter(int32_t type, int32_t index);
SPECGEN_EXPORT void specgen_device_guard_leave(void* guard);
