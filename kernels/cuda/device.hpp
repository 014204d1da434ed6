// What CUDA this build and this machine have.
#pragma once

#include <string>

namespace khop::cuda {

struct DeviceStatus {
  int runtime_version = 0;  // 13000 is 13.0
  int driver_version = 0;   // 0: no driver
  int num_devices = 0;
  std::string error;  // empty if devices can be used
};

// Never throws: on a machine without a driver `error` says so.
DeviceStatus device_status();

}  // namespace khop::cuda
