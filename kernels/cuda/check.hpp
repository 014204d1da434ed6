// Every CUDA call goes through this: a failure becomes an exception that names the call.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace khop::cuda {

inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(call) + " failed: " + cudaGetErrorName(error) + ", " +
                             cudaGetErrorString(error));
  }
}

}  // namespace khop::cuda

#define KHOP_CUDA_CHECK(call) ::khop::cuda::check((call), #call)
