// Reads ahead into the caches.
#pragma once

namespace khop::cpu {

// Asks for the cache line of an address, which need not exist. The empty statement is there because
// GCC takes a function that does nothing but prefetch for one without effects, and drops its calls.
inline void prefetch_line(const void* address) {
  __builtin_prefetch(address);
  __asm__ volatile("");
}

// The same of a line that will be written to.
inline void prefetch_line_to_write(const void* address) {
  __builtin_prefetch(address, 1);
  __asm__ volatile("");
}

// The same into the second cache only.
inline void prefetch_line_to_second(const void* address) {
  __builtin_prefetch(address, 0, 2);
  __asm__ volatile("");
}

}  // namespace khop::cpu
