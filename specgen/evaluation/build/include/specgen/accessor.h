// Tensor accessors, by value in kernels (packed) and by reference on the host. Same names, same template arguments.
#pragma once

#include <specgen/options.h>

namespace at {
inline namespace specgen_v1 {

template <class T>
struct DefaultPtrTraits {
  using PtrType = T*;
};
#ifdef __CUDACC__
template <class T>
struct RestrictPtrTraits {
  using PtrType = T* __restrict__;
};
#endif

// A view of N >= 1 dimensions whose sizes and strides belong to somebody else (as long as they live).
template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits, class Index = int64_t>
class TensorAccessor {
 public:
  using PtrType = typename PtrTraits<T>::PtrType;
  C10_HOST_DEVICE TensorAccessor(PtrType data, const Index* sizes, const Index* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  C10_HOST_DEVICE decltype(auto) operator[](Index k) const {
    if constexpr (N == 1) {
      return (data_[strides_[0] * k]);
    } else {
      return TensorAccessor<T, N - 1, PtrTraits, Index>(data_ + strides_[0] * k, sizes_ + 1, strides_ + 1);
    }
  }
  C10_HOST_DEVICE const Index& size(Index k) const {
    return sizes_[k];
  }
  C10_HOST_DEVICE const Index& stride(Index k) const {
    return strides_[k];
  }
  C10_HOST c10::ArrayRef<Index> sizes() const {
    return c10::ArrayRef<Index>(sizes_, N);
  }
  C10_HOST c10::ArrayRef<Index> strides() const {
    return c10::ArrayRef<Index>(strides_, N);
  }
  C10_HOST_DEVICE PtrType data() const {
    return data_;
  }

 private:
  PtrType data_;
  const Index* sizes_;
  const Index* strides_;
};

// The same with its own copy of sizes and strides: what a kernel takes by value.
template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits, class Index = int64_t>
class GenericPackedTensorAccessor {
 public:
  using PtrType = typename PtrTraits<T>::PtrType;
  template <class Source>
  C10_HOST GenericPackedTensorAccessor(PtrType data, const Source* sizes, const Source* strides) : data_(data) {
    for (size_t k = 0; k < N; ++k) {
      sizes_[k] = static_cast<Index>(sizes[k]);
      strides_[k] = static_cast<Index>(strides[k]);
    }
  }
  C10_HOST_DEVICE decltype(auto) operator[](Index k) const {
    if constexpr (N == 1) {
      return (data_[strides_[0] * k]);
    } else {
      return TensorAccessor<T, N - 1, PtrTraits, Index>(data_ + strides_[0] * k, sizes_ + 1, strides_ + 1);
    }
  }
  C10_HOST_DEVICE const Index& size(Index k) const {
    return sizes_[k];
  }
  C10_HOST_DEVICE const Index& stride(Index k) const {
    return strides_[k];
  }
  C10_HOST_DEVICE PtrType data() const {
    return data_;
  }

 private:
  PtrType data_;
  Index sizes_[N];
  Index strides_[N];
};

template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, PtrTraits, int32_t>;
template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, PtrTraits, int64_t>;

} // namespace specgen_v1
} // namespace at
