#include "khop/device/host_mapping.hpp"

#include <cstdint>
#include <cstring>

namespace khop::device {

HostMapping::HostMapping(std::shared_ptr<Device> device, const void* memory, std::size_t bytes,
                         std::size_t width, HostOwner owner)
    : device_(std::move(device)), memory_(memory), bytes_(bytes), owner_(std::move(owner)) {
  if (bytes_ == 0) return;
  if (reinterpret_cast<uintptr_t>(memory_) % width == 0) {
    on_device_ = device_->map_host(memory_, bytes_, owner_);
  }
  if (on_device_ != nullptr) return;
  copy_ = std::make_unique<PinnedMemory>(device_, bytes_);
  std::memcpy(copy_->data(), memory_, bytes_);
  on_device_ = copy_->data();
  owner_.keeps.reset();
}

HostMapping::~HostMapping() {
  if (bytes_ > 0 && copy_ == nullptr) device_->unmap_host(memory_, bytes_);
}

}  // namespace khop::device
