// Memory that a GPU did not allocate: the host's, read in place, and that of other GPUs.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "khop/cuda/check.hpp"
#include "khop/cuda/on_device.hpp"
#include "khop/device/host_pages.hpp"

namespace khop::cuda {

inline bool has(cudaDeviceAttr attribute, int device) {
  int value = 0;
  KHOP_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value != 0;
}

// Registrations hold for all devices, so the process has one list of them. Never destroyed, for
// tables may live until the end.
inline device::HostPages& registered_pages() {
  static device::HostPages* const pages = new device::HostPages;
  return *pages;
}

// Returns whether the driver agreed. As read-only where the device knows that: files that are
// mapped read-only can be registered in no other way, and private mappings are not copied. Not all
// devices and drivers do (a B300 with driver 610 does not).
inline bool register_pages(bool knows_read_only, uintptr_t start, std::size_t bytes) noexcept {
  auto* const memory = reinterpret_cast<void*>(start);
  const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  if (knows_read_only &&
      cudaHostRegister(memory, bytes, flags | cudaHostRegisterReadOnly) == cudaSuccess) {
    return true;
  }
  forget_error();
  // Refused are files mapped read-only (cudaErrorInvalidValue), pages that other code registered
  // in part (cudaErrorHostMemoryAlreadyRegistered), more pages than may be locked, and others. If
  // the device is lost, the allocation of the copy will say so.
  if (cudaHostRegister(memory, bytes, flags) == cudaSuccess) return true;
  forget_error();
  return false;
}

// Smaller arrays may lie on the heap and share pages with others: glibc gives pages of its own only
// to what is above a threshold, which it raises to this much. The pages of an array that is
// registered must be its own, for copies of memory that is registered in part are refused,
// also those by the neighbour's owner. So a part of a larger array is registered with the rest of
// it, if that is not more than the part.
constexpr std::size_t kWorthRegistering = std::size_t{32} << 20;

// Where the current device sees an address of the host, or null.
inline const char* seen_at(uintptr_t address) {
  cudaPointerAttributes attributes{};
  KHOP_CUDA_CHECK(cudaPointerGetAttributes(&attributes, reinterpret_cast<const void*>(address)));
  if (attributes.type != cudaMemoryTypeHost) return nullptr;
  return static_cast<const char*>(attributes.devicePointer);
}

// Where the current device sees memory that other code registered or allocated so, every page of
// it (torch's pinned tensors): it is in use then, and its owner keeps it so. Null if none did.
inline const void* seen_of_others(uintptr_t begin, std::size_t bytes) {
  const char* const first = seen_at(begin);
  if (first == nullptr || seen_at(begin + bytes - 1) != first + (bytes - 1)) return nullptr;
  uintptr_t page = device::HostPages::page_after(begin);
  for (; page < begin + bytes; page = device::HostPages::page_after(page + 1)) {
    if (seen_at(page) != first + (page - begin)) return nullptr;
  }
  return first;
}

inline void unmap_host(int device, const void* memory, std::size_t bytes) noexcept {
  registered_pages().release(memory, bytes, [device](uintptr_t start) {
    quietly(device, [start] { cudaHostUnregister(reinterpret_cast<void*>(start)); });
  });
}

// Of the current device. Null if it cannot read this memory in place.
inline const void* map_host(int device, const void* memory, std::size_t bytes,
                            const device::HostOwner& owner) {
  // Such a device reads whatever the process can.
  if (has(cudaDevAttrPageableMemoryAccessUsesHostPageTables, device)) return memory;
  device::HostPages& pages = registered_pages();
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const bool knows_read_only = has(cudaDevAttrHostRegisterReadOnlySupported, device);
  const bool acquired = pages.acquire(memory, bytes, owner, [&](uintptr_t start, std::size_t size) {
    return bytes >= kWorthRegistering && size - bytes <= bytes &&
           register_pages(knows_read_only, start, size);
  });
  if (!acquired) {
    return pages.touches(memory, bytes) ? nullptr : seen_of_others(begin, bytes);
  }
  const void* const seen = seen_at(begin);
  if (seen == nullptr) unmap_host(device, memory, bytes);
  return seen;
}

// Lets `device`, the current one, read what `peer` allocates by cudaMalloc. False: no path.
inline bool enable_peer(int device, int peer) {
  if (device == peer) return true;
  int can = 0;
  KHOP_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, device, peer));
  if (can == 0) return false;
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    forget_error();  // by torch, say
    return true;
  }
  check(error, "cudaDeviceEnablePeerAccess");
  return true;
}

}  // namespace khop::cuda
