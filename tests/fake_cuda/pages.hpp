// Pages of the process.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace fake_cuda {

inline uintptr_t page_bytes() {
  static const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
inline uintptr_t page_of(uintptr_t address) { return address & ~(page_bytes() - 1); }
inline uintptr_t page_after(uintptr_t address) { return page_of(address + page_bytes() - 1); }

// Whether all pages are mapped, and as one may write to them if that is asked for: memory that is
// mapped read-only can be registered as such alone.
bool can_be_locked(uintptr_t begin, std::size_t bytes, bool read_only);

}  // namespace fake_cuda
