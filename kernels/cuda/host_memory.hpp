// Memory that a GPU did not allocate: the host's, read in place, and that of other GPUs.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../device/host_pages.hpp"
#include "check.hpp"

namespace khop::cuda {

// Makes a device current for as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    KHOP_CUDA_CHECK(cudaGetDevice(&before_));
    if (before_ != device) KHOP_CUDA_CHECK(cudaSetDevice(device));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

inline bool has(cudaDeviceAttr attribute, int device) {
  int value = 0;
  KHOP_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value != 0;
}

// Registrations hold for all devices, so the process has one list of them. Never destroyed, for
// tables may live until the end.
inline HostPages& registered_pages() {
  static HostPages* const pages = new HostPages;
  return *pages;
}

inline void unregister(uintptr_t start) noexcept {
  cudaHostUnregister(reinterpret_cast<void*>(start));
  cudaGetLastError();  // nothing can be done, and it must not surface elsewhere
}

// Says whether the driver agreed. As read-only where the device knows that: files that are mapped
// read-only can be registered in no other way, and private mappings are not copied. Not all devices
// and drivers do (a B300 with driver 610 does not).
inline bool register_pages(bool knows_read_only, uintptr_t start, std::size_t bytes) noexcept {
  auto* const memory = reinterpret_cast<void*>(start);
  const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  if (knows_read_only &&
      cudaHostRegister(memory, bytes, flags | cudaHostRegisterReadOnly) == cudaSuccess) {
    return true;
  }
  cudaGetLastError();
  // Refused are files mapped read-only (cudaErrorInvalidValue), pages that somebody else registered
  // in part (cudaErrorHostMemoryAlreadyRegistered), more pages than may be locked, and others. If
  // the device is lost, the allocation of the copy will say so.
  if (cudaHostRegister(memory, bytes, flags) == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

// Arrays that are smaller lie among others on the heap (glibc's threshold for pages of their own),
// and copies of memory that is registered in part fail: their pages are better left alone.
constexpr std::size_t kWorthRegistering = std::size_t{128} << 10;

// Where the current device sees an address of the host, or null.
inline const char* seen_at(uintptr_t address) {
  cudaPointerAttributes attributes{};
  KHOP_CUDA_CHECK(cudaPointerGetAttributes(&attributes, reinterpret_cast<const void*>(address)));
  if (attributes.type != cudaMemoryTypeHost) return nullptr;
  return static_cast<const char*>(attributes.devicePointer);
}

// Where the current device sees `memory`, if all of it lies where these addresses of it do.
inline const void* seen_together(uintptr_t memory, const std::vector<uintptr_t>& addresses) {
  const void* seen = nullptr;
  for (const uintptr_t address : addresses) {
    const char* const at = seen_at(address);
    if (at == nullptr) return nullptr;
    const auto* const base =
        reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(at) + (memory - address));
    if (seen != nullptr && base != seen) return nullptr;
    seen = base;
  }
  return seen;
}

// Of the current device. Null if it cannot read this memory in place.
inline const void* map_host(int device, const void* memory, std::size_t bytes,
                            const std::shared_ptr<const void>& owner) {
  // Such a device reads whatever the process can.
  if (has(cudaDevAttrPageableMemoryAccessUsesHostPageTables, device)) return memory;
  if (bytes < kWorthRegistering) return nullptr;
  HostPages& pages = registered_pages();
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const bool knows_read_only = has(cudaDevAttrHostRegisterReadOnlySupported, device);
  const std::vector<uintptr_t> pieces = pages.acquire(
      memory, bytes, owner,
      [&](uintptr_t start, std::size_t size) {
        return register_pages(knows_read_only, start, size);
      },
      &unregister);
  if (pieces.empty()) {
    // Somebody else may have registered or allocated it so (torch's pinned tensors), from end to
    // end: it is in use then, and `owner` keeps it so.
    return seen_together(begin, {begin, begin + bytes - 1});
  }
  const void* const seen = seen_together(begin, pieces);
  if (seen == nullptr) pages.release(memory, bytes, &unregister);
  return seen;
}

inline void unmap_host(const void* memory, std::size_t bytes) noexcept {
  registered_pages().release(memory, bytes, &unregister);
}

// Lets `device`, the current one, read what `peer` allocates by cudaMalloc. False: no path.
inline bool enable_peer(int device, int peer) {
  if (device == peer) return true;
  int can = 0;
  KHOP_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, device, peer));
  if (can == 0) return false;
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // by torch, say
    return true;
  }
  check(error, "cudaDeviceEnablePeerAccess");
  return true;
}

}  // namespace khop::cuda
