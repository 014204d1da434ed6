// Page-locked memory that copies between a device and the host go through.
//
// The driver refuses to copy memory of the host that is registered in part, and any array may be
// that: other code registers another view of the same memory, say. And where a device reads
// pageable memory through the host's page tables, it may do so long after the call.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "khop/cuda/on_device.hpp"

namespace khop::cuda {

class Staging {
 public:
  static constexpr std::size_t kMost = std::size_t{16} << 20;  // bytes at a time

  explicit Staging(int device) : device_(device) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() { release(); }

  bool in_use() const { return used_ > 0; }

  // Room for `bytes`, at most kMost, that no copy in flight uses. If there is none, it calls
  // `wait`, which waits for all copies.
  template <class Wait>
  char* take(std::size_t bytes, Wait wait) {
    if (bytes > size_ - used_) {
      if (in_use()) wait();
      used_ = 0;
      if (bytes > size_) grow(bytes);
    }
    char* const place = data_ + used_;
    used_ += std::min((bytes + kAlignment - 1) / kAlignment * kAlignment, size_ - used_);
    return place;
  }

  // All copies are done.
  void clear() { used_ = 0; }

 private:
  static constexpr std::size_t kLeast = std::size_t{64} << 10;
  static constexpr std::size_t kAlignment = 64;

  void grow(std::size_t bytes) {
    release();
    std::size_t size = kLeast;
    while (size < bytes) size *= 2;
    const OnDevice on(device_);
    void* memory = nullptr;
    KHOP_CUDA_CHECK(cudaHostAlloc(&memory, size, cudaHostAllocPortable));
    data_ = static_cast<char*>(memory);
    size_ = size;
  }

  void release() noexcept {
    if (data_ != nullptr) quietly(device_, [this] { cudaFreeHost(data_); });
    data_ = nullptr;
    size_ = 0;
  }

  int device_;
  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
};

}  // namespace khop::cuda
