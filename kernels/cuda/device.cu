#include <cuda_runtime.h>

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

}  // namespace khop::cuda
