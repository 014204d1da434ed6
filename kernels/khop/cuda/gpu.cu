#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "khop/cuda/backend.cuh"
#include "khop/cuda/gpu.hpp"
#include "khop/cuda/stream.hpp"
#include "khop/device/device_on.hpp"

namespace khop::cuda {
namespace {

// Errors of what is only reported are reported, too, and must not surface elsewhere.
std::string take_error(cudaError_t error) {
  forget_error();
  return cudaGetErrorString(error);
}

cudaError_t describe(int index, Gpu& gpu) {
  cudaDeviceProp found;
  const cudaError_t error = cudaGetDeviceProperties(&found, index);
  if (error != cudaSuccess) return error;
  gpu.name = found.name;
  gpu.major = found.major;
  gpu.minor = found.minor;
  gpu.memory = found.totalGlobalMem;
  gpu.multiprocessors = found.multiProcessorCount;
  int supported = 0;
  const cudaError_t asked =
      cudaDeviceGetAttribute(&supported, cudaDevAttrHostRegisterReadOnlySupported, index);
  gpu.registers_read_only = asked == cudaSuccess && supported != 0;
  return asked;
}

// Otherwise the first launch would fail, for want of machine code.
void check_architecture([[maybe_unused]] int index) {
#ifdef KHOP_LOWEST_ARCHITECTURE
  int major = 0;
  int minor = 0;
  KHOP_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  KHOP_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  constexpr int lowest = KHOP_LOWEST_ARCHITECTURE;
  if (10 * major + minor >= lowest) return;
  const std::string own = std::to_string(major) + "." + std::to_string(minor);
  throw std::runtime_error(
      "GPU " + std::to_string(index) + " has compute capability " + own +
      ", but khop was built for " + std::to_string(lowest / 10) + "." +
      std::to_string(lowest % 10) +
      " and later: build it with KHOP_CUDA_ARCHITECTURES=" + std::to_string(10 * major + minor));
#endif
}

}  // namespace

DeviceStatus device_status() {
  DeviceStatus status;
#ifdef KHOP_LOWEST_ARCHITECTURE
  status.lowest_capability = KHOP_LOWEST_ARCHITECTURE;
#endif
  cudaRuntimeGetVersion(&status.runtime_version);
  cudaDriverGetVersion(&status.driver_version);
  const cudaError_t error = cudaGetDeviceCount(&status.num_devices);
  if (error != cudaSuccess) {
    status.num_devices = 0;
    status.error = take_error(error);
  }
  for (int index = 0; index < status.num_devices; ++index) {
    Gpu gpu;
    const cudaError_t failure = describe(index, gpu);
    if (failure != cudaSuccess) status.error = take_error(failure);
    status.gpus.push_back(std::move(gpu));
  }
  return status;
}

std::unique_ptr<device::Device> make_device(int index, uintptr_t stream,
                                            device::Allocator allocator) {
  check_architecture(index);
  return std::make_unique<device::DeviceOn<Backend>>("cuda:" + std::to_string(index), index,
                                                     reinterpret_cast<cudaStream_t>(stream),
                                                     std::move(allocator));
}

uintptr_t make_lasting_stream(int index) {
  const OnDevice on(index);
  return reinterpret_cast<uintptr_t>(make_stream());
}

}  // namespace khop::cuda
