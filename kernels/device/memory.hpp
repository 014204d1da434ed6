// Arrays in the memory of a device.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <utility>

namespace khop {

// Grows by being made anew: what it held is gone then.
template <class Backend, class T>
class DeviceArray {
 public:
  explicit DeviceArray(Backend& backend) : backend_(&backend) {}
  DeviceArray(Backend& backend, int64_t size) : backend_(&backend) { reserve(size); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  DeviceArray(DeviceArray&& other) noexcept
      : backend_(other.backend_),
        data_(std::exchange(other.data_, nullptr)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~DeviceArray() {
    if (data_ != nullptr) backend_->release(data_);
  }

  // Returns whether the array was made anew.
  bool reserve(int64_t capacity) {
    if (capacity <= capacity_ && data_ != nullptr) return false;
    if (data_ != nullptr) backend_->release(std::exchange(data_, nullptr));
    capacity_ = 0;
    data_ = static_cast<T*>(backend_->allocate(static_cast<std::size_t>(capacity) * sizeof(T)));
    capacity_ = capacity;
    return true;
  }

  T* data() const { return data_; }
  int64_t capacity() const { return capacity_; }

  void upload(const T* from, int64_t count) {
    backend_->upload(data_, from, static_cast<std::size_t>(count) * sizeof(T));
  }
  void download(T* to, int64_t count) const {
    backend_->download(to, data_, static_cast<std::size_t>(count) * sizeof(T));
  }

 private:
  Backend* backend_;
  T* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace khop
