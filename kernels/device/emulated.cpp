#include "emulated.hpp"

#include "device_on.hpp"

namespace khop {

std::unique_ptr<Device> make_emulated_device(uint64_t seed, int num_threads) {
  return std::make_unique<DeviceOn<EmulatedBackend>>("emulated", seed, num_threads);
}

}  // namespace khop
