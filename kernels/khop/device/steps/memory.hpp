// Arrays in the memory of a device, and what sorts and checks need of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "khop/core/sizes.hpp"
#include "khop/device/steps/backend.hpp"

namespace khop::device {

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
    data_ = static_cast<T*>(backend_->allocate(bytes_of(capacity, sizeof(T))));
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

// How many bits tell `count` numbers, 0 to count - 1, apart; at least one.
inline int bits_for(int64_t count) {
  int bits = 1;
  while (bits < 63 && (int64_t{1} << bits) < count) ++bits;
  return bits;
}

// Memory that a sort needs: 32 bytes a pair.
template <class Backend>
class SortMemory {
 public:
  explicit SortMemory(Backend& backend)
      : keys_(backend), other_keys_(backend), values_(backend), other_values_(backend) {}
  SortMemory(Backend& backend, int64_t count) : SortMemory(backend) { reserve(count); }

  void reserve(int64_t count) {
    keys_.reserve(count);
    other_keys_.reserve(count);
    values_.reserve(count);
    other_values_.reserve(count);
  }
  // Of all four: growing may have failed between them.
  int64_t capacity() const {
    return std::min(
        {keys_.capacity(), other_keys_.capacity(), values_.capacity(), other_values_.capacity()});
  }

  SortPairs pairs() const {
    return {keys_.data(), values_.data(), other_keys_.data(), other_values_.data()};
  }

 private:
  DeviceArray<Backend, uint64_t> keys_;
  DeviceArray<Backend, uint64_t> other_keys_;
  DeviceArray<Backend, int64_t> values_;
  DeviceArray<Backend, int64_t> other_values_;
};

// Positions that steps lower by `atomic_min`: the first of what was found wrong, of each of a few
// kinds.
template <class Backend>
class FirstPlaces {
 public:
  FirstPlaces(Backend& backend, int64_t kinds) : kinds_(kinds), words_(backend, kinds) {
    backend.fill(words_.data(), 0xFF, static_cast<std::size_t>(kinds) * sizeof(uint64_t));
  }

  uint64_t* word(int64_t kind) const { return words_.data() + kind; }
  // To places[0 .. kinds): -1 where nothing was found. Waits.
  void read(int64_t* places) const { words_.download(reinterpret_cast<uint64_t*>(places), kinds_); }

 private:
  int64_t kinds_;
  DeviceArray<Backend, uint64_t> words_;
};

}  // namespace khop::device
