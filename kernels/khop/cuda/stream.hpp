// Streams of a GPU.
#pragma once

#include <cuda_runtime.h>

#include "khop/cuda/check.hpp"

namespace khop::cuda {

// A stream of the current device, of a higher priority than others have: a batch is a chain of
// small kernels, of which each would wait for a trainer's large ones.
inline cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  KHOP_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
  return stream;
}

}  // namespace khop::cuda
