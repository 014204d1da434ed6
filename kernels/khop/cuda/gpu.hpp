// GPUs: devices on CUDA's backend, and what CUDA this build and this machine have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "khop/device/allocator.hpp"
#include "khop/device/device.hpp"

namespace khop::cuda {

struct Gpu {
  std::string name;  // "NVIDIA H200"
  int major = 0;     // of its compute capability
  int minor = 0;
  std::size_t memory = 0;  // bytes
  int multiprocessors = 0;
  bool registers_read_only = false;  // pages that are mapped read-only, as files are
};

struct DeviceStatus {
  int runtime_version = 0;    // 13000 is 13.0
  int driver_version = 0;     // 0: no driver
  int lowest_capability = 0;  // that it was built for: 80 is 8.0; 0: not known
  int num_devices = 0;
  std::vector<Gpu> gpus;  // as far as they answer
  std::string error;      // empty if devices can be used
};

// Never throws: on a machine without a driver `error` has the reason.
DeviceStatus device_status();

// GPU number `index`. Work goes to `stream` (a cudaStream_t; 0: one of its own), memory comes from
// `allocator`, or else from the driver's pool. Throws std::runtime_error if there is no such GPU.
std::unique_ptr<device::Device> make_device(int index, uintptr_t stream,
                                            device::Allocator allocator);

// A stream of GPU number `index` that is never destroyed. Throws as `make_device` does.
uintptr_t make_lasting_stream(int index);

#ifdef KHOP_FAKE_CUDA
// With the CUDA runtime of the tests: an emulated device, whose memory is the host's, that does
// what a GPU does (tests/fake_cuda/emulated_device.cpp).
std::unique_ptr<device::Device> make_emulated_device(device::EmulatedAbilities abilities);
#endif

}  // namespace khop::cuda
