#include "khop/cpu/write_back_cache.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace khop::cpu {
namespace {

constexpr uint8_t kMostUses = 3;
constexpr int kThreads = 16;                         // writes in flight
constexpr int64_t kWriteBytes = int64_t{256} << 10;  // of one write

bool write_all(int file, const char* memory, int64_t bytes, int64_t offset, int& error) {
  while (bytes > 0) {
    const ssize_t done = pwrite(file, memory, static_cast<std::size_t>(bytes), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      error = done < 0 ? errno : EIO;
      return false;
    }
    memory += done;
    offset += done;
    bytes -= done;
  }
  return true;
}

}  // namespace

WriteBackCache::WriteBackCache(int64_t num_blocks, int64_t capacity) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (num_blocks < 1 || num_blocks > kMost || capacity < 1 || capacity > kMost) {
    throw std::invalid_argument("a cache has 1 to 2^31 - 1 blocks, of as many");
  }
  slot_of_.resize(num_blocks);
  std::fill_n(slot_of_.data(), num_blocks, -1);
  slots_.resize(capacity);
  std::fill_n(slots_.data(), capacity, Slot{});
}

int64_t WriteBackCache::free_slot() {
  while (true) {
    const int64_t at = hand_;
    hand_ = hand_ + 1 == slots_.size() ? 0 : hand_ + 1;
    Slot& slot = slots_[at];
    if (slot.stamp == stamp_) continue;
    if (slot.block >= 0 && slot.count > 0) {
      --slot.count;
      continue;
    }
    return at;
  }
}

void WriteBackCache::load(const int64_t* blocks, int64_t count, bool changes, Loaded& out) {
  if (count > slots_.size()) throw std::length_error("more blocks than the cache has slots");
  for (int64_t i = 0; i < count; ++i) {
    if (blocks[i] < 0 || blocks[i] >= slot_of_.size()) {
      throw std::out_of_range("block " + std::to_string(blocks[i]) + " does not exist");
    }
  }
  if (++stamp_ == 0) {  // after 2^32 calls
    for (int64_t i = 0; i < slots_.size(); ++i) slots_[i].stamp = 0;
    stamp_ = 1;
  }
  // Blocks that are here keep their slots before any other block takes one.
  for (int64_t i = 0; i < count; ++i) {
    const int32_t at = slot_of_[blocks[i]];
    if (at < 0) continue;
    Slot& slot = slots_[at];
    if (slot.stamp != stamp_ && slot.count < kMostUses) ++slot.count;
    slot.stamp = stamp_;
  }
  int64_t* const slots = out.slots.extend(count);
  for (int64_t i = 0; i < count; ++i) {
    int32_t& at = slot_of_[blocks[i]];
    if (at < 0) {
      const int64_t taken = free_slot();
      Slot& slot = slots_[taken];
      if (slot.block >= 0) {
        slot_of_[slot.block] = -1;
        if (slot.is_changed) {
          out.written.push_back(slot.block);
          out.written_slots.push_back(taken);
        }
      }
      slot = Slot{static_cast<int32_t>(blocks[i]), stamp_, 0, false};
      at = static_cast<int32_t>(taken);
      out.misses.push_back(blocks[i]);
      out.miss_slots.push_back(taken);
    }
    slots_[at].is_changed |= changes;
    slots[i] = at;
  }
}

int write_blocks(int file, const int64_t* blocks, int64_t count, const char* memory,
                 int64_t block_bytes) {
  std::vector<int64_t> runs;  // the first of each run of neighbours
  const int64_t most = std::max<int64_t>(kWriteBytes / block_bytes, 1);
  for (int64_t i = 0; i < count; ++i) {
    const bool follows = i > 0 && blocks[i] == blocks[i - 1] + 1 && i - runs.back() < most;
    if (!follows) runs.push_back(i);
  }
  runs.push_back(count);
  const auto num_runs = static_cast<int64_t>(runs.size()) - 1;
  std::atomic<int64_t> next{0};
  std::atomic<int> failure{0};
  const auto work = [&] {
    int error = 0;
    for (int64_t i = next++; i < num_runs && failure == 0; i = next++) {
      const int64_t first = runs[i];
      if (!write_all(file, memory + first * block_bytes, (runs[i + 1] - first) * block_bytes,
                     blocks[first] * block_bytes, error)) {
        failure = error;
      }
    }
  };
  std::vector<std::thread> threads;
  const auto wanted = static_cast<int>(std::min<int64_t>(kThreads, num_runs));
  try {
    for (int i = 1; i < wanted; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {  // the threads that there are do the work
  }
  work();
  for (auto& thread : threads) thread.join();
  return failure;
}

}  // namespace khop::cpu
