#include "pointers.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "device_pages.hpp"
#include "memory.hpp"
#include "pages.hpp"

namespace fake_cuda {
namespace {

// Words below are numbers: of programs that are loaded anywhere all memory lies above.
constexpr uintptr_t kLowest = uintptr_t{1} << 44;
constexpr uintptr_t kHighest = uintptr_t{1} << 47;
// Larger uploads are data.
constexpr std::size_t kLargestTable = std::size_t{1} << 20;

bool is_mapped(uintptr_t address) {
  return msync(reinterpret_cast<void*>(page_of(address)), page_bytes(), MS_ASYNC) == 0;
}

// Calls f(offset, word) for the words that may be pointers.
template <class F>
void for_words(const void* bytes, std::size_t size, F f) {
  const auto* const begin = static_cast<const char*>(bytes);
  for (std::size_t at = 0; at + sizeof(uintptr_t) <= size; at += sizeof(uintptr_t)) {
    uintptr_t word;
    std::memcpy(&word, begin + at, sizeof(word));
    // A number of 32 bits and the padding behind it may look like one.
    const bool is_number = word < kLowest || word >= kHighest || (word & 0xFFFF'0000) == 0;
    if (!is_number) f(at, word);
  }
}

// Null, or what is wrong with a device that follows a pointer.
const char* fault_of(uintptr_t word, int device) {
  const auto* const memory = reinterpret_cast<const void*>(word);
  int owner = device;
  switch (fake_cuda::memory().place_of(memory, 1, &owner)) {
    case Place::kDevice:
      return reaches(device, memory, owner) ? nullptr : "another device's memory";
    case Place::kPinned:
      return nullptr;
    case Place::kRefused:
      return "memory that is gone";
    case Place::kPageable:
      break;
  }
  if (device_pages().contains(word)) return nullptr;  // the end of something, or a number
  if (option("pageable_reads_late") != 0 || !is_mapped(word)) return nullptr;
  return "memory of the host that no device can read";
}

// Whether a device may follow a pointer. If not, it is a violation.
bool check(uintptr_t word, int device, const char* where) {
  const char* const fault = fault_of(word, device);
  if (fault != nullptr) report_violation(std::string(where) + " leads to " + fault);
  return fault == nullptr;
}

// Words of uploads, by the allocation that they lie in and by their address.
struct Tables {
  std::mutex mutex;
  std::map<uintptr_t, std::map<uintptr_t, uintptr_t>> words;
};

Tables& tables() {
  static Tables* const all = new Tables;
  return *all;
}

}  // namespace

// Memory that was allocated for one device can be reached from another if peers were enabled; not
// that of pools.
bool reaches(int device, const void* memory, int owner) {
  if (device == owner) return true;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    const auto& peers = state().peers[device];
    if (std::find(peers.begin(), peers.end(), owner) == peers.end()) return false;
  }
  return !fake_cuda::memory().is_of_pool(memory);
}

Pointers::Pointers(const void* bytes, std::size_t size, const Stream& stream)
    : device_(stream.device()), is_checked_(!stream.is_emulated()) {
  if (!is_checked_) return;
  for_words(bytes, size, [this](std::size_t, uintptr_t word) {
    if (check(word, device_, "an argument of a kernel")) words_.push_back(word);
  });
}

void Pointers::check_when_it_runs() const {
  if (!is_checked_) return;
  std::vector<uintptr_t> in_tables;
  for (const uintptr_t word : words_) {
    check(word, device_, "a kernel that runs");
    const uintptr_t begin = memory().begin_of(word);
    if (begin == 0) continue;
    const std::lock_guard<std::mutex> lock(tables().mutex);
    const auto found = tables().words.find(begin);
    if (found == tables().words.end()) continue;
    for (const auto& [address, pointer] : found->second) in_tables.push_back(pointer);
  }
#if !defined(__SANITIZE_ADDRESS__)  // which leaves addresses of the host in padding
  for (const uintptr_t word : in_tables) check(word, device_, "a table of a kernel that runs");
#endif
}

void note_upload(const void* to, std::size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(to);
  const uintptr_t begin = memory().begin_of(address);
  const std::lock_guard<std::mutex> lock(tables().mutex);
  auto& words = tables().words[begin];
  if (address == begin) {
    words.clear();  // what is left behind it belongs to nobody
  } else {
    words.erase(words.lower_bound(address), words.lower_bound(address + bytes));
  }
  if (bytes > kLargestTable) return;
  for_words(to, bytes, [&](std::size_t at, uintptr_t word) { words[address + at] = word; });
}

void forget_uploads(uintptr_t begin) {
  const std::lock_guard<std::mutex> lock(tables().mutex);
  tables().words.erase(begin);
}

}  // namespace fake_cuda
