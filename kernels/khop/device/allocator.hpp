// Where a device's memory comes from, if not from its driver: torch's caching allocator, say.
#pragma once

#include <cstddef>
#include <functional>

namespace khop {

struct Allocator {
  std::function<void*(std::size_t bytes)> allocate;  // empty: the driver's
  std::function<void(void* memory)> release;
};

}  // namespace khop
