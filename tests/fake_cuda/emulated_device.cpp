// An emulated device on this runtime: its memory is the host's, and what it is asked for is done
// when the call returns, so that whatever is written for emulated devices runs on CUDA's backend.
#include <memory>
#include <string>

#include "khop/core/sizes.hpp"
#include "khop/cuda/backend.cuh"
#include "khop/cuda/gpu.hpp"
#include "khop/device/device_on.hpp"
#include "khop/device/shared_files.hpp"
#include "streams.hpp"

namespace khop::cuda {
namespace {

constexpr int kIndex = 0;

// Outlives the backend that works on it.
struct EmulatedStream {
  cudaStream_t handle = fake_cuda::create_emulated_stream(kIndex);
  ~EmulatedStream() {
    quietly(kIndex, [this] { cudaStreamDestroy(handle); });
  }
};

class EmulatedOnFake : private EmulatedStream, public Backend {
 public:
  explicit EmulatedOnFake(device::EmulatedAbilities abilities)
      : Backend(kIndex, EmulatedStream::handle, {}), abilities_(abilities) {}

  void* allocate(std::size_t bytes) {
    if (bytes > static_cast<std::size_t>(fake_cuda::option("memory"))) throw OutOfMemory(bytes, 1);
    return Backend::allocate(bytes);
  }

  // Registers what GPUs would leave alone, too.
  const void* map_host(const void* memory, std::size_t bytes, const device::HostOwner& owner) {
    const bool mapped =
        registered_pages().acquire(memory, bytes, owner, [this](uintptr_t start, std::size_t size) {
          const OnDevice on(kIndex);
          return abilities_.maps_host && register_pages(true, start, size);
        });
    return mapped ? memory : nullptr;
  }

  // The host's, too.
  void* allocate_for_peers(std::size_t bytes) {
    void* const memory = device::SharedFiles::get().allocate(bytes);
    if (memory == nullptr) throw OutOfMemory(bytes, 1);
    return memory;
  }
  void release_for_peers(void* memory) noexcept { device::SharedFiles::get().release(memory); }
  bool reach(const EmulatedOnFake& peer) const {
    return abilities_.island == peer.abilities_.island;
  }
  std::string handle_of(void* memory) const { return device::SharedFiles::get().handle_of(memory); }
  void* open_handle(const std::string& handle) const {
    return device::SharedFiles::get().open(handle);
  }
  void close_handle(void* memory) const noexcept { device::SharedFiles::get().release(memory); }
  bool lock_pages(void* memory, std::size_t bytes) const noexcept {
    return abilities_.maps_host && Backend::lock_pages(memory, bytes);
  }

 private:
  device::EmulatedAbilities abilities_;
};

}  // namespace

std::unique_ptr<device::Device> make_emulated_device(device::EmulatedAbilities abilities) {
  const std::string name =
      abilities.island == 0 ? "emulated" : "emulated:" + std::to_string(abilities.island);
  return std::make_unique<device::DeviceOn<EmulatedOnFake>>(name, abilities);
}

}  // namespace khop::cuda
