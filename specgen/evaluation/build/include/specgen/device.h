// c10::Device and its types. Only the two kinds of device that candidates run on, and those that tests for them name.
#pragma once

#include <specgen/message.h>

namespace c10 {
inline namespace specgen_v1 {

enum class DeviceType : int8_t { CPU = 0, CUDA = 1, Meta = 14 };
constexpr DeviceType kCPU = DeviceType::CPU;
constexpr DeviceType kCUDA = DeviceType::CUDA;
constexpr DeviceType kMeta = DeviceType::Meta;
using DeviceIndex = int8_t;

inline std::string DeviceTypeName(DeviceType t) {
  return specgen_device_type_name(static_cast<int32_t>(t));
}
inline void append(std::string& out, DeviceType t) {
  out += DeviceTypeName(t);
}

struct Device {
  using Type = DeviceType;

  Device(DeviceType type, DeviceIndex index = -1) : type_(type), index_(index) {
    if (index < -1 || (type == kCPU && index > 0)) {
      specgen_check_device(static_cast<int32_t>(type), index);
    }
  }
  Device(const std::string& text) : type_(kCPU) {
    int32_t type = 0;
    int32_t index = -1;
    specgen_parse_device(text.c_str(), &type, &index);
    type_ = static_cast<DeviceType>(type);
    index_ = static_cast<DeviceIndex>(index);
  }

  bool operator==(const Device& other) const noexcept {
    return type_ == other.type_ && index_ == other.index_;
  }
  bool operator!=(const Device& other) const noexcept {
    return !(*this == other);
  }
  void set_index(DeviceIndex index) {
    index_ = index;
  }
  DeviceType type() const noexcept {
    return type_;
  }
  DeviceIndex index() const noexcept {
    return index_;
  }
  bool has_index() const noexcept {
    return index_ != -1;
  }
  bool is_cuda() const noexcept {
    return type_ == kCUDA;
  }
  bool is_cpu() const noexcept {
    return type_ == kCPU;
  }
  bool is_meta() const noexcept {
    return type_ == kMeta;
  }
  std::string str() const {
    std::string out = DeviceTypeName(type_);
    if (has_index()) {
      out += ':';
      out += std::to_string(static_cast<int>(index_));
    }
    return out;
  }

 private:
  DeviceType type_;
  DeviceIndex index_ = -1;
};

inline void append(std::string& out, const Device& device) {
  out += device.str();
}

} // namespace specgen_v1
} // namespace c10
