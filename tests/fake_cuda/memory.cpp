#include "memory.hpp"

#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "device_pages.hpp"
#include "pages.hpp"
#include "pointers.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define KHOP_POISON(begin, bytes) __asan_poison_memory_region(begin, bytes)
#define KHOP_UNPOISON(begin, bytes) __asan_unpoison_memory_region(begin, bytes)
#else
#define KHOP_POISON(begin, bytes) (void)(begin)
#define KHOP_UNPOISON(begin, bytes) (void)(begin)
#endif

namespace fake_cuda {
namespace {

constexpr int kNeverWritten = 0xA5;
constexpr int kFreed = 0xDD;
constexpr int kBeyond = 0x6B;
// Filling more than the ends of large memory would take most of the tests' time.
constexpr std::size_t kFilled = std::size_t{1} << 20;
// Freed memory that is kept so that its use shows.
constexpr std::size_t kKept = std::size_t{2} << 20;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

void fill(uintptr_t begin, std::size_t bytes, int pattern) {
  std::memset(pointer(begin), pattern, std::min(bytes, kFilled));
  if (bytes > kFilled) {
    const std::size_t rest = std::min(bytes - kFilled, kFilled);
    std::memset(pointer(begin + bytes - rest), pattern, rest);
  }
}

bool is_filled(uintptr_t begin, std::size_t bytes, int pattern) {
  const auto* const byte = reinterpret_cast<const unsigned char*>(begin);
  const auto all = [&](std::size_t from, std::size_t to) {
    return std::all_of(byte + from, byte + to, [&](unsigned char b) { return b == pattern; });
  };
  if (bytes <= kFilled) return all(0, bytes);
  return all(0, kFilled) && all(bytes - std::min(bytes - kFilled, kFilled), bytes);
}

// What other processes can open lies in a file without a name. -1 if there is no room.
int make_file(std::size_t bytes) {
  const int file = memfd_create("device memory", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(page_after(bytes))) == 0) return file;
  close(file);
  return -1;
}

// As long as it lives the host may touch a piece of memory.
class Held {
 public:
  explicit Held(const Range& range) : range_(range) {
    if (range.is_closed) device_pages().hold(range.begin);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (range_.is_closed) device_pages().let_go(range_.begin);
  }

 private:
  const Range& range_;
};

}  // namespace

Memory& memory() {
  static Memory* const all = new Memory;
  return *all;
}

void* Memory::allocate(Origin origin, int device, std::size_t bytes, bool is_closed) {
  const int64_t limit = option("memory");
  const std::lock_guard<std::mutex> lock(mutex_);
  Range range;
  range.bytes = bytes;
  range.origin = origin;
  range.device = device;
  range.is_closed = is_closed;
  const bool of_device = range.is_of_device();
  if (of_device && (bytes > static_cast<std::size_t>(limit) ||
                    used_[device] + static_cast<int64_t>(bytes) > limit)) {
    return nullptr;
  }
  if (origin == Origin::kMalloc && (range.file = make_file(bytes)) < 0) return nullptr;
  void* memory = nullptr;
  if (is_closed) {
    memory = device_pages().map(bytes, range.file);
  } else if (posix_memalign(&memory, page_bytes(), page_after(bytes)) != 0) {
    memory = nullptr;
  }
  if (memory == nullptr) return nullptr;
  range.begin = reinterpret_cast<uintptr_t>(memory);
  fill(range.begin, bytes, kNeverWritten);
  std::memset(pointer(range.end()), kBeyond, page_after(range.end()) - range.end());
  KHOP_POISON(pointer(range.end()), page_after(range.end()) - range.end());
  if (is_closed) device_pages().let_go(range.begin);
  if (of_device) used_[device] += static_cast<int64_t>(bytes);
  ranges_[range.begin] = range;
  return memory;
}

void* Memory::open(int device, int file, std::size_t bytes) {
  void* const memory = device_pages().map(bytes, file);
  if (memory == nullptr) return nullptr;
  flock(file, LOCK_SH);  // whoever frees it finds that it is in use
  const std::lock_guard<std::mutex> lock(mutex_);
  Range range;
  range.begin = reinterpret_cast<uintptr_t>(memory);
  range.bytes = bytes;
  range.origin = Origin::kOpened;
  range.device = device;
  range.file = file;
  range.is_closed = true;
  device_pages().let_go(range.begin);
  ranges_[range.begin] = range;
  return memory;
}

bool Memory::find(const void* memory, Range& found, Origin origin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = ranges_.find(reinterpret_cast<uintptr_t>(memory));
  if (place == ranges_.end() || place->second.is_free || place->second.origin != origin) {
    return false;
  }
  found = place->second;
  return true;
}

// The pool may give it to whoever comes next in the stream's order: it counts no more.
bool Memory::ask_free(const void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = ranges_.find(reinterpret_cast<uintptr_t>(memory));
  if (place == ranges_.end() || place->second.is_asked_free) return false;
  Range& range = place->second;
  if (range.origin != Origin::kPool || range.is_free) return false;
  range.is_asked_free = true;
  used_[range.device] -= static_cast<int64_t>(range.bytes);
  return true;
}

bool Memory::release(const void* memory, Origin origin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = ranges_.find(reinterpret_cast<uintptr_t>(memory));
  if (place == ranges_.end() || place->second.is_free || place->second.origin != origin) {
    return false;
  }
  Range& range = place->second;
  if (range.is_of_device() && range.origin != Origin::kOpened && !range.is_asked_free) {
    used_[range.device] -= static_cast<int64_t>(range.bytes);
  }
  range.is_free = true;
  if (range.file >= 0 && flock(range.file, LOCK_EX | LOCK_NB) != 0 && origin == Origin::kMalloc) {
    report_violation("memory was freed that another process has opened: " +
                     std::to_string(range.bytes) + " bytes");
  }
  if (range.file >= 0) flock(range.file, LOCK_UN);
  {
    const Held held(range);
    if (origin != Origin::kOpened) {
      check_end(range);
      fill(range.begin, range.bytes, kFreed);
    }
  }
  KHOP_POISON(pointer(range.begin), range.bytes);
  forget_uploads(range.begin);
  free_[num_freed_++] = range.begin;
  free_bytes_ += range.bytes;
  while (free_bytes_ > kKept) forget_oldest();
  return true;
}

void Memory::forget_oldest() {
  const auto place = ranges_.find(free_.begin()->second);
  free_.erase(free_.begin());
  free_bytes_ -= place->second.bytes;
  take_back(place->second);
  ranges_.erase(place);
}

// What other processes have opened they may still write to.
void Memory::check_free(const Range& range) const {
  if (range.origin == Origin::kOpened) return;
  const Held held(range);
  KHOP_UNPOISON(pointer(range.begin), range.bytes);
  if (!is_filled(range.begin, range.bytes, kFreed)) {
    report_violation("memory was written to after it was freed: " + std::to_string(range.bytes) +
                     " bytes");
    fill(range.begin, range.bytes, kFreed);
  }
  KHOP_POISON(pointer(range.begin), range.bytes);
}

// The rest of the last page is nobody's.
void Memory::check_end(const Range& range) const {
  const std::size_t rest = page_after(range.end()) - range.end();
  KHOP_UNPOISON(pointer(range.end()), rest);
  if (!is_filled(range.end(), rest, kBeyond)) {
    report_violation("memory was written to beyond its end: " + std::to_string(range.bytes) +
                     " bytes");
  }
  KHOP_POISON(pointer(range.end()), rest);
}

void Memory::check_free() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [order, begin] : free_) check_free(ranges_.at(begin));
}

void Memory::take_back(Range& range) {
  check_free(range);
  KHOP_UNPOISON(pointer(range.begin), page_after(range.bytes));
  if (range.is_closed) {
    device_pages().unmap(range.begin);
  } else {
    std::free(pointer(range.begin));
  }
  if (range.file >= 0) close(range.file);
}

// Whole pages are locked, none twice; what counts as registered are the bytes that were named.
cudaError_t Memory::register_pages(uintptr_t begin, std::size_t bytes, bool read_only) {
  if (bytes == 0 || !can_be_locked(begin, bytes, read_only)) return cudaErrorInvalidValue;
  const int64_t lockable = option("lockable");
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto* ranges : {&registered_, &ranges_}) {
    for (const auto& [start, range] : *ranges) {
      if (range.is_free || range.origin == Origin::kPool) continue;
      const bool apart =
          page_after(range.end()) <= page_of(begin) || page_after(begin + bytes) <= page_of(start);
      if (!apart) return cudaErrorHostMemoryAlreadyRegistered;
    }
  }
  std::size_t locked = bytes;
  for (const auto& [start, range] : registered_) locked += range.bytes;
  if (locked > static_cast<std::size_t>(lockable)) return cudaErrorMemoryAllocation;
  Range range;
  range.begin = begin;
  range.bytes = bytes;
  range.origin = Origin::kRegistered;
  registered_[begin] = range;
  return cudaSuccess;
}

bool Memory::unregister(uintptr_t begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return registered_.erase(begin) == 1;
}

// The range that was allocated at an address, free or not.
const Range* Memory::range_at(uintptr_t address) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  const Range& range = std::prev(after)->second;
  return range.contains(address, 1) ? &range : nullptr;
}

const Range* Memory::pinned_around(uintptr_t address) const {
  if (const Range* range = range_at(address)) {
    return range->origin == Origin::kHost && !range->is_free ? range : nullptr;
  }
  const auto after = registered_.upper_bound(address);
  if (after == registered_.begin()) return nullptr;
  const Range& range = std::prev(after)->second;
  return range.contains(address, 1) ? &range : nullptr;
}

bool Memory::touches_pinned(uintptr_t begin, uintptr_t end) const {
  for (const auto* ranges : {&registered_, &ranges_}) {
    auto place = ranges->lower_bound(begin);
    if (place != ranges->begin() && std::prev(place)->second.end() > begin) --place;
    if (place != ranges->end() && place->first < end) return true;
  }
  return false;
}

Place Memory::place_of(const void* memory, std::size_t bytes, int* device) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const std::lock_guard<std::mutex> lock(mutex_);
  const Range* const range = range_at(begin);
  if (range != nullptr && range->is_of_device()) {
    *device = range->device;
    return range->contains(begin, bytes) && !range->is_free ? Place::kDevice : Place::kRefused;
  }
  // Pieces that were registered side by side are one.
  uintptr_t end = begin;
  while (end < begin + bytes) {
    const Range* const piece = pinned_around(end);
    if (piece == nullptr) break;
    end = piece->end();
  }
  if (end >= begin + bytes) return Place::kPinned;
  return touches_pinned(begin, begin + bytes) ? Place::kRefused : Place::kPageable;
}

bool Memory::is_of_pool(const void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Range* const range = range_at(reinterpret_cast<uintptr_t>(memory));
  return range != nullptr && range->origin == Origin::kPool;
}

uintptr_t Memory::begin_of(uintptr_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Range* const range = range_at(address);
  return range == nullptr ? 0 : range->begin;
}

cudaPointerAttributes Memory::attributes_of(const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto* const seen = const_cast<void*>(memory);
  const std::lock_guard<std::mutex> lock(mutex_);
  const Range* const range = range_at(address);
  if (range != nullptr && range->is_of_device() && !range->is_free) {
    return {cudaMemoryTypeDevice, range->device, seen, nullptr};
  }
  if (const Range* const pinned = pinned_around(address)) {
    return {cudaMemoryTypeHost, pinned->device, seen, seen};
  }
  return {cudaMemoryTypeUnregistered, -1, nullptr, nullptr};
}

int64_t Memory::used(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_[device];
}

}  // namespace fake_cuda
