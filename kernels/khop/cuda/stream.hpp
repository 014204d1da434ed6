// Streams of a GPU.
#pragma once

#include <cuda_runtime.h>

#include "khop/cuda/check.hpp"
#include "khop/cuda/on_device.hpp"

namespace khop::cuda {

// A stream of the current device, of a higher priority than others have: a batch is a chain of
// small kernels, of which each would wait for a trainer's large ones.
inline cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  KHOP_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
  return stream;
}

// The stream of a backend: that of others, or one of its own.
class BackendStream {
 public:
  BackendStream(int device, cudaStream_t of_others) : device_(device), stream_(of_others) {
    if (stream_ != nullptr) return;
    const OnDevice on(device);
    stream_ = make_stream();
    is_own_ = true;
  }
  BackendStream(const BackendStream&) = delete;
  BackendStream& operator=(const BackendStream&) = delete;
  ~BackendStream() {
    if (is_own_) quietly(device_, [this] { cudaStreamDestroy(stream_); });
  }

  cudaStream_t get() const { return stream_; }
  bool is_own() const { return is_own_; }

 private:
  int device_;
  cudaStream_t stream_;
  bool is_own_ = false;
};

}  // namespace khop::cuda
