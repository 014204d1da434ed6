#include <cuda_runtime.h>

#include "../device/device_on.hpp"
#include "backend.cuh"
#include "device.hpp"

namespace khop::cuda {

DeviceStatus device_status() {
  DeviceStatus status;
  cudaRuntimeGetVersion(&status.runtime_version);
  cudaDriverGetVersion(&status.driver_version);
  const cudaError_t error = cudaGetDeviceCount(&status.num_devices);
  if (error != cudaSuccess) {
    status.num_devices = 0;
    status.error = cudaGetErrorString(error);
    cudaGetLastError();  // the error is reported here and must not surface elsewhere
  }
  return status;
}

std::unique_ptr<Device> make_device(int index, uintptr_t stream, Allocator allocator) {
  return std::make_unique<DeviceOn<Backend>>("cuda:" + std::to_string(index), index,
                                             reinterpret_cast<cudaStream_t>(stream),
                                             std::move(allocator));
}

}  // namespace khop::cuda
