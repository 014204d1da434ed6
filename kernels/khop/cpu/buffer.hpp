// A growable array that never initialises and never shrinks, so that a sampler's buffers are mapped
// once and reused by every batch. First touch of fresh memory costs more than sampling into it.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "khop/core/sizes.hpp"

namespace khop::cpu {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

inline void* allocate(int64_t count, std::size_t width) {
  const std::size_t bytes = bytes_of(count, width);
  const bool large = bytes >= 2 * kHugePage;
  const std::size_t alignment = large ? kHugePage : 64;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw OutOfMemory(static_cast<std::size_t>(count), width);
  // Random access to a table of megabytes is bound by TLB misses on 4 KiB pages.
  if (large) madvise(memory, rounded, MADV_HUGEPAGE);
  return memory;
}

template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(int64_t size) { resize(size); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() { std::free(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  int64_t capacity() const { return capacity_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  void clear() { size_ = 0; }

  void reserve(int64_t capacity) {
    if (capacity <= capacity_) return;
    int64_t grown = capacity_ * 2;
    if (grown < capacity) grown = capacity;
    T* memory = static_cast<T*>(allocate(grown, sizeof(T)));
    if (size_ > 0) std::memcpy(memory, data_, static_cast<std::size_t>(size_) * sizeof(T));
    std::free(data_);
    data_ = memory;
    capacity_ = grown;
  }

  // New elements are uninitialised.
  void resize(int64_t size) {
    reserve(size);
    size_ = size;
  }

  T* extend(int64_t count) {
    const int64_t old = size_;
    if (count > capacity_ - old) reserve(count_with(old, count));
    size_ = old + count;
    return data_ + old;
  }

  void push_back(T value) { *extend(1) = value; }

  void drop_front(int64_t count) {
    if (count == 0) return;
    size_ -= count;
    std::memmove(data_, data_ + count, static_cast<std::size_t>(size_) * sizeof(T));
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  T* data_ = nullptr;
  int64_t size_ = 0;
  int64_t capacity_ = 0;
};

}  // namespace khop::cpu
