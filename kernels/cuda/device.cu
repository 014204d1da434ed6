#include <cuda_runtime.h>

#include <utility>

#include "../device/device_on.hpp"
#include "backend.cuh"
#include "device.hpp"

namespace khop::cuda {
namespace {

// Errors of what is only reported are reported, too, and must not surface elsewhere.
std::string take_error(cudaError_t error) {
  cudaGetLastError();
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

}  // namespace

DeviceStatus device_status() {
  DeviceStatus status;
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

std::unique_ptr<Device> make_device(int index, uintptr_t stream, Allocator allocator) {
  return std::make_unique<DeviceOn<Backend>>("cuda:" + std::to_string(index), index,
                                             reinterpret_cast<cudaStream_t>(stream),
                                             std::move(allocator));
}

}  // namespace khop::cuda
