// c10::ArrayRef and its relatives: views of somebody else's elements.
#pragma once

#include <specgen/message.h>

#include <array>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

namespace c10 {
inline namespace specgen_v1 {

using std::nullopt;
using std::nullopt_t;
using std::optional;
using string_view = std::string_view;

template <class T>
class ArrayRef {
 public:
  using value_type = T;
  using iterator = const T*;
  using const_iterator = const T*;
  using size_type = size_t;

  constexpr ArrayRef() = default;
  constexpr ArrayRef(const T& one) : data_(&one), size_(1) {}
  constexpr ArrayRef(const T* data, size_t size) : data_(data), size_(size) {}
  constexpr ArrayRef(const T* begin, const T* end) : data_(begin), size_(static_cast<size_t>(end - begin)) {}
  ArrayRef(const std::vector<T>& v) : data_(v.data()), size_(v.size()) {
    static_assert(!std::is_same_v<T, bool>, "ArrayRef<bool> cannot be constructed from a std::vector<bool>");
  }
  template <size_t N>
  constexpr ArrayRef(const std::array<T, N>& a) : data_(a.data()), size_(N) {}
  template <size_t N>
  constexpr ArrayRef(const T (&a)[N]) : data_(a), size_(N) {}
  constexpr ArrayRef(const std::initializer_list<T>& l) : data_(l.begin()), size_(l.size()) {}

  constexpr const T* begin() const {
    return data_;
  }
  constexpr const T* end() const {
    return data_ + size_;
  }
  constexpr bool empty() const {
    return size_ == 0;
  }
  constexpr const T* data() const {
    return data_;
  }
  constexpr size_t size() const {
    return size_;
  }
  constexpr const T& operator[](size_t k) const {
    return data_[k];
  }
  const T& at(size_t k) const {
    SPECGEN_REQUIRE(k < size_, "ArrayRef: invalid index Index = ", k, "; Length = ", size_);
    return data_[k];
  }
  const T& front() const {
    SPECGEN_REQUIRE(size_ != 0, "ArrayRef: attempted to access front() of empty list");
    return data_[0];
  }
  const T& back() const {
    SPECGEN_REQUIRE(size_ != 0, "ArrayRef: attempted to access back() of empty list");
    return data_[size_ - 1];
  }
  ArrayRef slice(size_t n, size_t m) const {
    SPECGEN_REQUIRE(n + m <= size_, "ArrayRef: invalid slice, N = ", n, "; M = ", m, "; size = ", size_);
    return ArrayRef(data_ + n, m);
  }
  ArrayRef slice(size_t n) const {
    SPECGEN_REQUIRE(n <= size_, "ArrayRef: invalid slice, N = ", n, "; size = ", size_);
    return slice(n, size_ - n);
  }
  bool equals(ArrayRef other) const {
    if (size_ != other.size_) {
      return false;
    }
    for (size_t k = 0; k < size_; ++k) {
      if (!(data_[k] == other.data_[k])) {
        return false;
      }
    }
    return true;
  }
  std::vector<T> vec() const {
    return std::vector<T>(data_, data_ + size_);
  }

 private:
  const T* data_ = nullptr;
  size_t size_ = 0;
};

template <class T>
bool operator==(ArrayRef<T> a, ArrayRef<T> b) {
  return a.equals(b);
}
template <class T>
bool operator!=(ArrayRef<T> a, ArrayRef<T> b) {
  return !a.equals(b);
}
template <class T>
bool operator==(const std::vector<T>& a, ArrayRef<T> b) {
  return ArrayRef<T>(a).equals(b);
}
template <class T>
bool operator!=(const std::vector<T>& a, ArrayRef<T> b) {
  return !ArrayRef<T>(a).equals(b);
}
template <class T>
bool operator==(ArrayRef<T> a, const std::vector<T>& b) {
  return a.equals(ArrayRef<T>(b));
}
template <class T>
bool operator!=(ArrayRef<T> a, const std::vector<T>& b) {
  return !a.equals(ArrayRef<T>(b));
}

template <class T>
void append(std::string& out, ArrayRef<T> list) {
  out += '[';
  for (size_t k = 0; k < list.size(); ++k) {
    if (k != 0) {
      out += ", ";
    }
    append(out, list[k]);
  }
  out += ']';
}

using IntArrayRef = ArrayRef<int64_t>;

// An optional ArrayRef that also takes a single element, as schemas with `int[1]?` want it.
template <class T>
class OptionalArrayRef {
 public:
  OptionalArrayRef() = default;
  OptionalArrayRef(std::nullopt_t) {}
  OptionalArrayRef(ArrayRef<T> list) : list_(list) {}
  OptionalArrayRef(const std::optional<ArrayRef<T>>& list) : list_(list) {}
  OptionalArrayRef(const T& one) : list_(ArrayRef<T>(one)) {}
  OptionalArrayRef(const std::vector<T>& v) : list_(ArrayRef<T>(v)) {}
  OptionalArrayRef(const std::initializer_list<T>& l) : list_(ArrayRef<T>(l)) {}
  template <size_t N>
  OptionalArrayRef(const std::array<T, N>& a) : list_(ArrayRef<T>(a)) {}

  bool has_value() const {
    return list_.has_value();
  }
  explicit operator bool() const {
    return has_value();
  }
  const ArrayRef<T>& operator*() const {
    return *list_;
  }
  const ArrayRef<T>& value() const {
    return list_.value();
  }

 private:
  std::optional<ArrayRef<T>> list_;
};
using OptionalIntArrayRef = OptionalArrayRef<int64_t>;

} // namespace specgen_v1
} // namespace c10
