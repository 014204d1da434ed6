#include "khop/device/emulated.hpp"

#include "khop/device/device_on.hpp"

namespace khop::device {

std::unique_ptr<Device> make_emulated_device(uint64_t seed, int num_threads,
                                             EmulatedAbilities abilities) {
  const std::string name =
      abilities.island == 0 ? "emulated" : "emulated:" + std::to_string(abilities.island);
  return std::make_unique<DeviceOn<EmulatedBackend>>(name, seed, num_threads, abilities);
}

}  // namespace khop::device
