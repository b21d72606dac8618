// Tensors behind handles: what at::Tensor's own inline methods do, with the same checks and messages.
// A handle is the pointer of an intrusive_ptr<TensorImpl>; null is the undefined tensor.

namespace {

using Impl = c10::TensorImpl;
using Pointer = c10::intrusive_ptr<Impl, c10::UndefinedTensorImpl>;

at::Tensor borrow(void* handle) {
  return handle == nullptr ? at::Tensor() : at::Tensor(Pointer::reclaim_copy(static_cast<Impl*>(handle)));
}
at::Tensor adopt(void* handle) {
  return handle == nullptr ? at::Tensor() : at::Tensor(Pointer::reclaim(static_cast<Impl*>(handle)));
}
void* give(at::Tensor tensor) {
  return tensor.defined() ? tensor.unsafeReleaseTensorImpl() : nullptr;
}
// Metadata is read from the implementation itself; an undefined tensor's answers (and throws) as it does in torch.
Impl* impl(void* handle) {
  return handle == nullptr ? static_cast<Impl*>(c10::UndefinedTensorImpl::singleton()) : static_cast<Impl*>(handle);
}

// The façade's numbers are torch's.
static_assert(static_cast<int>(at::kByte) == 0 && static_cast<int>(at::kChar) == 1 && static_cast<int>(at::kShort) == 2);
static_assert(static_cast<int>(at::kInt) == 3 && static_cast<int>(at::kLong) == 4 && static_cast<int>(at::kHalf) == 5);
static_assert(static_cast<int>(at::kFloat) == 6 && static_cast<int>(at::kDouble) == 7);
static_assert(static_cast<int>(at::kComplexHalf) == 8 && static_cast<int>(at::kComplexDouble) == 10);
static_assert(static_cast<int>(at::kBool) == 11 && static_cast<int>(at::kBFloat16) == 15);
static_assert(static_cast<int>(at::kFloat8_e5m2) == 23 && static_cast<int>(at::kFloat8_e4m3fn) == 24);
static_assert(static_cast<int>(at::kUInt16) == 27 && static_cast<int>(at::kUInt32) == 28 && static_cast<int>(at::kUInt64) == 29);
static_assert(static_cast<int>(at::kCPU) == 0 && static_cast<int>(at::kCUDA) == 1 && static_cast<int>(at::kMeta) == 14);
static_assert(static_cast<int>(at::kStrided) == 0 && static_cast<int>(at::kSparse) == 1);
static_assert(static_cast<int>(at::MemoryFormat::Contiguous) == 0 && static_cast<int>(at::MemoryFormat::ChannelsLast3d) == 3);

at::ScalarType scalar_type(int32_t dtype) {
  return static_cast<at::ScalarType>(dtype);
}

at::TensorOptions unflatten(const SpecgenOptions& o) {
  at::TensorOptions options;
  if (o.dtype >= 0) {
    options = options.dtype(scalar_type(o.dtype));
  }
  if (o.device_type >= 0) {
    options = options.device(static_cast<at::DeviceType>(o.device_type), static_cast<at::DeviceIndex>(o.device_index));
  }
  if (o.requires_grad >= 0) {
    options = options.requires_grad(o.requires_grad != 0);
  }
  if (o.pinned_memory >= 0) {
    options = options.pinned_memory(o.pinned_memory != 0);
  }
  return options;
}

template <class T>
void* typed_data(const at::Tensor& tensor, bool writable) {
  return writable ? static_cast<void*>(tensor.mutable_data_ptr<T>()) : const_cast<T*>(tensor.const_data_ptr<T>());
}

} // namespace

void specgen_retain(void* tensor) {
  c10::raw::intrusive_ptr::incref(static_cast<Impl*>(tensor));
}
void specgen_release(void* tensor) {
  c10::raw::intrusive_ptr::decref(static_cast<Impl*>(tensor));
}
int64_t specgen_use_count(void* tensor) {
  return static_cast<int64_t>(c10::raw::intrusive_ptr::use_count(static_cast<Impl*>(tensor)));
}
int64_t specgen_dim(void* tensor) {
  return impl(tensor)->dim();
}
int64_t specgen_numel(void* tensor) {
  return impl(tensor)->numel();
}
int64_t specgen_size(void* tensor, int64_t dim) {
  return impl(tensor)->size(dim);
}
int64_t specgen_stride(void* tensor, int64_t dim) {
  return borrow(tensor).stride(dim);
}
const int64_t* specgen_sizes(void* tensor, size_t* count) {
  const auto sizes = impl(tensor)->sizes();
  *count = sizes.size();
  return sizes.data();
}
const int64_t* specgen_strides(void* tensor, size_t* count) {
  const auto strides = impl(tensor)->strides();
  *count = strides.size();
  return strides.data();
}
int64_t specgen_storage_offset(void* tensor) {
  return impl(tensor)->storage_offset();
}
int64_t specgen_itemsize(void* tensor) {
  return static_cast<int64_t>(impl(tensor)->itemsize());
}
int64_t specgen_nbytes(void* tensor) {
  return static_cast<int64_t>(borrow(tensor).nbytes());
}
int32_t specgen_dtype(void* tensor) {
  return static_cast<int32_t>(c10::typeMetaToScalarType(impl(tensor)->dtype()));
}
int32_t specgen_layout(void* tensor) {
  return static_cast<int32_t>(impl(tensor)->layout());
}
void specgen_device(void* tensor, int32_t* type, int32_t* index) {
  const c10::Device device = impl(tensor)->device();
  *type = static_cast<int32_t>(device.type());
  *index = device.index();
}
bool specgen_is_contiguous(void* tensor, int32_t memory_format) {
  return impl(tensor)->is_contiguous(static_cast<at::MemoryFormat>(memory_format));
}
int32_t specgen_suggest_memory_format(void* tensor) {
  return static_cast<int32_t>(borrow(tensor).suggest_memory_format());
}
bool specgen_is_alias_of(void* tensor, void* other) {
  return borrow(tensor).is_alias_of(borrow(other));
}
bool specgen_requires_grad(void* tensor) {
  return impl(tensor)->requires_grad();
}
void specgen_set_requires_grad(void* tensor, bool value) {
  impl(tensor)->set_requires_grad(value);
}
void* specgen_data(void* handle, int32_t dtype, bool writable) {
  if (dtype < 0) {
    return writable ? impl(handle)->mutable_data() : const_cast<void*>(impl(handle)->data());
  }
  const at::Tensor tensor = borrow(handle);
  switch (scalar_type(dtype)) {
#define SPECGEN_CASE(cpp, name)  \
  case at::ScalarType::name:     \
    return typed_data<cpp>(tensor, writable);
    SPECGEN_CASE(uint8_t, Byte)
    SPECGEN_CASE(int8_t, Char)
    SPECGEN_CASE(int16_t, Short)
    SPECGEN_CASE(int32_t, Int)
    SPECGEN_CASE(int64_t, Long)
    SPECGEN_CASE(float, Float)
    SPECGEN_CASE(double, Double)
    SPECGEN_CASE(bool, Bool)
    SPECGEN_CASE(uint16_t, UInt16)
    SPECGEN_CASE(uint32_t, UInt32)
    SPECGEN_CASE(uint64_t, UInt64)
    SPECGEN_CASE(at::Half, Half)
    SPECGEN_CASE(at::BFloat16, BFloat16)
#undef SPECGEN_CASE
    default:
      TORCH_CHECK(false, "no data pointer of type ", scalar_type(dtype));
  }
}
void* specgen_contiguous(void* tensor, int32_t memory_format) {
  return give(borrow(tensor).contiguous(static_cast<at::MemoryFormat>(memory_format)));
}
void* specgen_data_of(void* tensor) {
  return give(borrow(tensor).data());
}
void* specgen_to_device(void* tensor, int32_t type) {
  const at::Tensor t = borrow(tensor);
  return give(type == static_cast<int32_t>(at::kCPU) ? t.cpu() : t.cuda());
}
void* specgen_from_blob(
    void* data, const int64_t* sizes, size_t ndim, const int64_t* strides, const SpecgenOptions* options) {
  const at::IntArrayRef shape(sizes, ndim);
  if (strides != nullptr) {
    return give(torch::from_blob(data, shape, at::IntArrayRef(strides, ndim), unflatten(*options)));
  }
  return give(torch::from_blob(data, shape, unflatten(*options)));
}

const char* specgen_scalar_type_name(int32_t dtype) {
  return c10::toString(scalar_type(dtype));
}
const char* specgen_type_name(int32_t dtype) {
  // A view into a longer text, so not a C string by itself.
  static thread_local std::string name;
  name = std::string(c10::scalarTypeToTypeMeta(scalar_type(dtype)).name());
  return name.c_str();
}
int64_t specgen_element_size(int32_t dtype) {
  return static_cast<int64_t>(c10::elementSize(scalar_type(dtype)));
}
const char* specgen_device_type_name(int32_t type) {
  static thread_local std::string name;
  name = c10::DeviceTypeName(static_cast<c10::DeviceType>(type), /*lower_case=*/true);
  return name.c_str();
}
void specgen_parse_device(const char* text, int32_t* type, int32_t* index) {
  const c10::Device device{std::string(text)};
  *type = static_cast<int32_t>(device.type());
  *index = device.index();
}
void specgen_check_device(int32_t type, int32_t index) {
  static_cast<void>(c10::Device(static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index)));
}
int32_t specgen_default_dtype() {
  return static_cast<int32_t>(c10::get_default_dtype_as_scalartype());
}

void specgen_raise(SpecgenError kind, const char* function, const char* file, uint32_t line, const char* message) {
  const c10::SourceLocation at{function, file, line};
  switch (kind) {
    case SPECGEN_INDEX_ERROR:
      throw c10::IndexError(at, message);
    case SPECGEN_VALUE_ERROR:
      throw c10::ValueError(at, message);
    case SPECGEN_TYPE_ERROR:
      throw c10::TypeError(at, message);
    case SPECGEN_NOT_IMPLEMENTED_ERROR:
      throw c10::NotImplementedError(at, message);
    default:
      c10::detail::torchCheckFail(function, file, line, message);
  }
}
void specgen_raise_internal(
    const char* function, const char* file, uint32_t line, const char* condition, const char* message) {
  c10::detail::torchInternalAssertFail(function, file, line, condition, std::string(message));
}
void specgen_warn(const char* function, const char* file, uint32_t line, const char* message) {
  c10::warn(c10::Warning(c10::UserWarning(), c10::SourceLocation{function, file, line}, std::string(message), false));
}
bool specgen_warn_always() {
  return c10::WarningUtils::get_warnAlways();
}
