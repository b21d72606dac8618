// at::Tensor: one counted reference to the real tensor, which only the support library can look into.
//
// The methods that are operators come from "specgen_methods.inc", written for each candidate from the declarations of
// the installed torch: exactly those overloads whose names occur in the source.
#pragma once

#include <specgen/accessor.h>
#include <specgen/scalar.h>

#include <string_view>
#include <tuple>

namespace at {
using namespace c10; // NOLINT: as torch does

inline namespace specgen_v1 {

class Tensor;
using TensorList = c10::ArrayRef<Tensor>;
using ITensorListRef = TensorList;

// Tensor::type(): kept by torch for old sources; not convertible to a ScalarType.
class DeprecatedTypeProperties {
 public:
  DeprecatedTypeProperties(Device device, ScalarType type) : device_(device), type_(type) {}
  bool is_cuda() const {
    return device_.is_cuda();
  }
  DeviceType device_type() const {
    return device_.type();
  }
  ScalarType scalarType() const {
    return type_;
  }

 private:
  Device device_;
  ScalarType type_;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor& other) : handle_(other.handle_) {
    if (handle_ != nullptr) {
      specgen_retain(handle_);
    }
  }
  Tensor(Tensor&& other) noexcept : handle_(other.handle_) {
    other.handle_ = nullptr;
  }
  ~Tensor() {
    if (handle_ != nullptr) {
      specgen_release(handle_);
    }
  }
  static Tensor specgen_adopt(void* handle) {
    Tensor t;
    t.handle_ = handle;
    return t;
  }
  static Tensor specgen_borrow(void* handle) {
    if (handle != nullptr) {
      specgen_retain(handle);
    }
    return specgen_adopt(handle);
  }
  void* specgen_handle() const {
    return handle_;
  }
  void* specgen_give_up() {
    return std::exchange(handle_, nullptr);
  }

  // An lvalue is rebound; an rvalue such as x[0] is written through.
  Tensor& operator=(const Tensor& other) & noexcept {
    Tensor copy(other);
    std::swap(handle_, copy.handle_);
    return *this;
  }
  Tensor& operator=(Tensor&& other) & noexcept {
    Tensor taken(std::move(other));
    std::swap(handle_, taken.handle_);
    return *this;
  }
  Tensor& operator=(const Scalar& value) &&;
  Tensor& operator=(const Tensor& value) &&;
  Tensor& operator=(Tensor&& value) &&;

  bool defined() const {
    return handle_ != nullptr;
  }
  void reset() {
    *this = Tensor();
  }
  bool is_same(const Tensor& other) const noexcept {
    return handle_ == other.handle_;
  }
  size_t use_count() const {
    return defined() ? static_cast<size_t>(specgen_use_count(handle_)) : 0;
  }

  int64_t dim() const {
    return specgen_dim(handle_);
  }
  int64_t ndimension() const {
    return dim();
  }
  int64_t numel() const {
    return specgen_numel(handle_);
  }
  int64_t size(int64_t dim) const {
    return specgen_size(handle_, dim);
  }
  int64_t stride(int64_t dim) const {
    return specgen_stride(handle_, dim);
  }
  IntArrayRef sizes() const {
    size_t count = 0;
    const int64_t* data = specgen_sizes(handle_, &count);
    return IntArrayRef(data, count);
  }
  IntArrayRef strides() const {
    size_t count = 0;
    const int64_t* data = specgen_strides(handle_, &count);
    return IntArrayRef(data, count);
  }
  int64_t storage_offset() const {
    return specgen_storage_offset(handle_);
  }
  size_t itemsize() const {
    return static_cast<size_t>(specgen_itemsize(handle_));
  }
  int64_t element_size() const {
    return specgen_itemsize(handle_);
  }
  size_t nbytes() const {
    return static_cast<size_t>(specgen_nbytes(handle_));
  }

  ScalarType scalar_type() const {
    return static_cast<ScalarType>(specgen_dtype(handle_));
  }
  caffe2::TypeMeta dtype() const {
    return scalarTypeToTypeMeta(scalar_type());
  }
  Layout layout() const {
    return static_cast<Layout>(specgen_layout(handle_));
  }
  Device device() const {
    int32_t type = 0;
    int32_t index = -1;
    specgen_device(handle_, &type, &index);
    return Device(static_cast<DeviceType>(type), static_cast<DeviceIndex>(index));
  }
  DeviceIndex get_device() const {
    return device().index();
  }
  TensorOptions options() const {
    return TensorOptions().dtype(dtype()).device(device()).layout(layout());
  }
  DeprecatedTypeProperties type() const {
    return DeprecatedTypeProperties(device(), scalar_type());
  }
  bool is_cuda() const {
    return device().is_cuda();
  }
  bool is_cpu() const {
    return device().is_cpu();
  }
  bool is_meta() const {
    return device().is_meta();
  }
  bool is_sparse() const {
    return layout() == Layout::Sparse;
  }
  bool is_complex() const {
    return isComplexType(scalar_type());
  }
  bool is_floating_point() const {
    return isFloatingType(scalar_type());
  }
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
    return specgen_is_contiguous(handle_, static_cast<int32_t>(format));
  }
  MemoryFormat suggest_memory_format() const {
    return static_cast<MemoryFormat>(specgen_suggest_memory_format(handle_));
  }
  bool is_alias_of(const Tensor& other) const {
    return specgen_is_alias_of(handle_, other.handle_);
  }
  bool requires_grad() const {
    return specgen_requires_grad(handle_);
  }
  const Tensor& set_requires_grad(bool value) const {
    specgen_set_requires_grad(handle_, value);
    return *this;
  }

  void* data_ptr() const {
    return specgen_data(handle_, -1, true);
  }
  void* mutable_data_ptr() const {
    return specgen_data(handle_, -1, true);
  }
  const void* const_data_ptr() const {
    return specgen_data(handle_, -1, false);
  }
  template <class T>
  T* data_ptr() const {
    return mutable_data_ptr<T>();
  }
  template <class T>
  T* mutable_data_ptr() const {
    return static_cast<T*>(specgen_data(handle_, static_cast<int32_t>(CppTypeToScalarType<T>::value), true));
  }
  template <class T>
  const T* const_data_ptr() const {
    using Plain = std::remove_const_t<T>;
    return static_cast<const T*>(specgen_data(handle_, static_cast<int32_t>(CppTypeToScalarType<Plain>::value), false));
  }
  template <class T>
  T* data() const {
    return data_ptr<T>();
  }
  Tensor data() const {
    return specgen_adopt(specgen_data_of(handle_));
  }

  template <class T, size_t N>
  TensorAccessor<T, N> accessor() const& {
    check_accessor<N>();
    return TensorAccessor<T, N>(accessor_data<T>(), sizes().data(), strides().data());
  }
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() && = delete;
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class Index = int64_t>
  GenericPackedTensorAccessor<T, N, Traits, Index> generic_packed_accessor() const& {
    check_accessor<N>();
    return GenericPackedTensorAccessor<T, N, Traits, Index>(accessor_data<T>(), sizes().data(), strides().data());
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, Traits> packed_accessor32() const& {
    SPECGEN_REQUIRE(
        numel() <= static_cast<int64_t>(std::numeric_limits<int32_t>::max()),
        "numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64");
    return generic_packed_accessor<T, N, Traits, int32_t>();
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, Traits> packed_accessor32() && = delete;
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, Traits> packed_accessor64() const& {
    return generic_packed_accessor<T, N, Traits, int64_t>();
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, Traits> packed_accessor64() && = delete;
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class Index = int64_t>
  GenericPackedTensorAccessor<T, N, Traits, Index> packed_accessor() const& {
    return generic_packed_accessor<T, N, Traits, Index>();
  }

  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
    return specgen_adopt(specgen_contiguous(handle_, static_cast<int32_t>(format)));
  }
  Tensor cpu() const {
    return specgen_adopt(specgen_to_device(handle_, static_cast<int32_t>(kCPU)));
  }
  Tensor cuda() const {
    return specgen_adopt(specgen_to_device(handle_, static_cast<int32_t>(kCUDA)));
  }
  Tensor toType(ScalarType type) const;
  template <class T>
  T item() const;

  Tensor operator~() const;
  Tensor operator-() const;
  Tensor& operator+=(const Tensor& other);
  Tensor& operator+=(const Scalar& other);
  Tensor& operator-=(const Tensor& other);
  Tensor& operator-=(const Scalar& other);
  Tensor& operator*=(const Tensor& other);
  Tensor& operator*=(const Scalar& other);
  Tensor& operator/=(const Tensor& other);
  Tensor& operator/=(const Scalar& other);
  Tensor operator[](int64_t index) const;

#define SPECGEN_DECLARE_METHODS
#include <specgen_methods.inc>
#undef SPECGEN_DECLARE_METHODS

 private:
  template <size_t N>
  void check_accessor() const {
    static_assert(N > 0, "accessor is used for indexing tensor, for scalars use *data_ptr<T>()");
    SPECGEN_REQUIRE(
        dim() == static_cast<int64_t>(N), "TensorAccessor expected ", N, " dims but tensor has ", dim());
  }
  template <class T>
  T* accessor_data() const {
    if constexpr (std::is_const_v<T>) {
      return const_data_ptr<T>();
    } else {
      return mutable_data_ptr<T>();
    }
  }

  void* handle_ = nullptr;
};

inline std::optional<Device> device_of(const Tensor& t) {
  return t.defined() ? std::make_optional(t.device()) : std::nullopt;
}
inline std::optional<Device> device_of(const std::optional<Tensor>& t) {
  return t.has_value() ? device_of(*t) : std::nullopt;
}
inline std::optional<Device> device_of(TensorList list) {
  return list.empty() ? std::nullopt : device_of(list.front());
}

} // namespace specgen_v1
} // namespace at
