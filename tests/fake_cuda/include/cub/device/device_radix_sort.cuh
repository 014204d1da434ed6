// As CUB's, for the tests' CUDA runtime: its rules for temporary storage and for double buffers.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace cub {

template <class T>
struct DoubleBuffer {
  T* d_buffers[2];
  int selector = 0;

  DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
  T* Current() const { return d_buffers[selector]; }
  T* Alternate() const { return d_buffers[selector ^ 1]; }
};

struct DeviceRadixSort {
  template <class Key, class Value>
  static cudaError_t SortPairs(void* storage, std::size_t& bytes, DoubleBuffer<Key>& keys,
                               DoubleBuffer<Value>& values, int64_t count, int begin_bit,
                               int end_bit, cudaStream_t stream) {
    const auto needed = static_cast<std::size_t>((count + 4095) / 4096 + 1) * 1024;
    if (storage == nullptr) {
      bytes = needed;
      return cudaSuccess;
    }
    const cudaError_t error = fake_cuda::launch_algorithm(
        "SortPairs", stream,
        std::make_shared<fake_cuda::KernelOf<void*, std::size_t, DoubleBuffer<Key>,
                                             DoubleBuffer<Value>, int64_t, int, int>>(
            &sort<Key, Value>, storage, needed, keys, values, count, begin_bit, end_bit));
    // A pass for eight bits at a time, from one buffer to the other.
    keys.selector ^= (end_bit - begin_bit + 7) / 8 % 2;
    values.selector = keys.selector;
    return error;
  }

 private:
  // What is not the result is left in disorder.
  template <class Key, class Value>
  static void sort(void* storage, std::size_t bytes, DoubleBuffer<Key> keys,
                   DoubleBuffer<Value> values, int64_t count, int begin_bit, int end_bit) {
    std::memset(storage, 0xC5, bytes);
    const int bits = end_bit - begin_bit;
    const Key mask = bits >= 64 ? ~Key{0} : (Key{1} << bits) - 1;
    std::vector<int64_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return (keys.Current()[a] >> begin_bit & mask) < (keys.Current()[b] >> begin_bit & mask);
    });
    for (int64_t i = 0; i < count; ++i) {
      keys.Alternate()[i] = keys.Current()[order[static_cast<std::size_t>(i)]];
      values.Alternate()[i] = values.Current()[order[static_cast<std::size_t>(i)]];
    }
    if ((bits + 7) / 8 % 2 == 0) {
      std::swap_ranges(keys.Current(), keys.Current() + count, keys.Alternate());
      std::swap_ranges(values.Current(), values.Current() + count, values.Alternate());
    }
  }
};

}  // namespace cub
