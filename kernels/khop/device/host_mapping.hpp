// Host memory that a device reads, in place or in a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "khop/device/device.hpp"

namespace khop::device {

// Page-locked host memory: devices read it in place and copy from it without a detour.
class PinnedMemory {
 public:
  PinnedMemory(std::shared_ptr<Device> device, std::size_t bytes)
      : device_(std::move(device)), data_(device_->allocate_host(bytes)), bytes_(bytes) {}
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory() { device_->release_host(data_); }

  char* data() const { return static_cast<char*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  void* data_;
  std::size_t bytes_;
};

// An array of the host as a device sees it: the memory itself, where it can be registered, else a
// pinned copy. Drivers refuse some: files mapped read-only on devices that cannot register memory
// as read-only, pages that others have registered in part. Small arrays, and small parts of larger
// ones, which are registered as a whole, are not worth it. And a
// device reads entries at multiples of their width alone, while an array of a file's may begin
// anywhere: another address is the end of a GPU's context.
class HostMapping {
 public:
  // `width`: bytes that are read at a time. `owner` is kept as long as the memory is read.
  HostMapping(std::shared_ptr<Device> device, const void* memory, std::size_t bytes,
              std::size_t width, HostOwner owner);
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;
  ~HostMapping();

  const void* on_device() const { return on_device_; }
  bool is_copy() const { return copy_ != nullptr; }

 private:
  std::shared_ptr<Device> device_;
  const void* memory_;
  std::size_t bytes_;
  HostOwner owner_;
  const void* on_device_ = nullptr;
  std::unique_ptr<PinnedMemory> copy_;
};

}  // namespace khop::device
