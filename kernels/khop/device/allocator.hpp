// Source of a device's memory, if not its driver: torch's caching allocator, for example.
#pragma once

#include <cstddef>
#include <functional>

namespace khop::device {

struct Allocator {
  std::function<void*(std::size_t bytes)> allocate;  // empty: the driver's
  std::function<void(void* memory)> release;
};

}  // namespace khop::device
