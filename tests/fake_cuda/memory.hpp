// All memory that the runtime knows: what it allocated, and what of the host was registered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "state.hpp"

namespace fake_cuda {

enum class Origin { kPool, kMalloc, kHost, kRegistered, kOpened };

struct Range {
  uintptr_t begin = 0;
  std::size_t bytes = 0;
  Origin origin = Origin::kPool;
  int device = 0;
  int file = -1;               // of kMalloc: what other processes map; of kOpened: that
  bool is_asked_free = false;  // of kPool: by a call, but perhaps not yet in the stream's order
  bool is_free = false;        // kept, so that its use shows
  bool is_closed = false;      // to the host: device memory, but not that of emulated devices

  uintptr_t end() const { return begin + bytes; }
  bool contains(uintptr_t from, std::size_t size) const {
    return begin <= from && from + size <= end();
  }
  bool is_of_device() const {
    return origin == Origin::kPool || origin == Origin::kMalloc || origin == Origin::kOpened;
  }
};

// What a copy may find at an address.
enum class Place {
  kDevice,    // within one piece of device memory
  kPinned,    // of the host, page-locked from end to end
  kPageable,  // of the host
  kRefused,   // memory that was freed, the end of an allocation, or locked in part
};

class Memory {
 public:
  // Null if there is no room. `is_closed`: the host cannot touch it.
  void* allocate(Origin origin, int device, std::size_t bytes, bool is_closed);
  void* open(int device, int file, std::size_t bytes);  // takes the file, if not null
  // What lies there, if it begins there and is of that kind; not what was freed.
  bool find(const void* memory, Range& found, Origin origin);
  // False if it is not there.
  bool ask_free(const void* memory);                // of the pool: until the stream has come so far
  bool release(const void* memory, Origin origin);  // at once

  cudaError_t register_pages(uintptr_t begin, std::size_t bytes, bool read_only);
  bool unregister(uintptr_t begin);

  bool is_of_pool(const void* memory);
  // Where the piece begins that was allocated around an address, free or not; 0: none was.
  uintptr_t begin_of(uintptr_t address);
  Place place_of(const void* memory, std::size_t bytes, int* device);
  cudaPointerAttributes attributes_of(const void* memory);
  int64_t used(int device);
  void check_free();  // reports memory that was written to after it was freed

 private:
  const Range* range_at(uintptr_t address) const;
  const Range* pinned_around(uintptr_t address) const;
  bool touches_pinned(uintptr_t begin, uintptr_t end) const;
  void check_free(const Range& range) const;
  void check_end(const Range& range) const;
  void take_back(Range& range);
  void forget_oldest();

  std::mutex mutex_;
  std::map<uintptr_t, Range> ranges_;      // that were allocated here, by their begin
  std::map<uintptr_t, Range> registered_;  // by their begin
  std::map<int, int64_t> used_;            // bytes, by device
  std::map<int64_t, uintptr_t> free_;      // in the order in which they became free
  int64_t num_freed_ = 0;
  std::size_t free_bytes_ = 0;
};

Memory& memory();  // never destroyed

}  // namespace fake_cuda
