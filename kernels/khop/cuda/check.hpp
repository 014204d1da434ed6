// Every CUDA call goes through this: a failure becomes an exception that names the call.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace khop::cuda {

// The runtime keeps the last error of a thread until it is asked for, and CUB takes it for one of
// its own: code that reports an error, or goes on without, clears it.
inline void forget_error() noexcept { cudaGetLastError(); }

inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  forget_error();
  throw std::runtime_error(std::string(call) + " failed: " + cudaGetErrorName(error) + ", " +
                           cudaGetErrorString(error));
}

}  // namespace khop::cuda

#define KHOP_CUDA_CHECK(call) ::khop::cuda::check((call), #call)
