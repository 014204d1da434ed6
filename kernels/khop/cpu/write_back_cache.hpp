// Write-back cache of a file's blocks: which blocks are in memory, in which slots, and writes of
// those that leave it. Its user reads blocks by DirectReads, and holds the memory.
#pragma once

#include <cstdint>

#include "khop/cpu/buffer.hpp"

namespace khop::cpu {

// Plan of the cache. A block that is missing takes the slot of another (GCLOCK: Smith,
// Sequentiality and Prefetching in Database Systems, 1978): a hand goes round the slots and takes
// the first whose count is zero, and counts down the others. A use counts up, to 3. A new block has
// zero, so that blocks that are used once leave first.
class WriteBackCache {
 public:
  struct Loaded {
    Buffer<int64_t> slots;          // of each entry
    Buffer<int64_t> misses;         // blocks to read, each once
    Buffer<int64_t> miss_slots;     // where to
    Buffer<int64_t> written;        // blocks that have changed and leave the cache
    Buffer<int64_t> written_slots;  // their slots so far
  };

  // Throws std::invalid_argument unless both are 1 to 2^31 - 1.
  WriteBackCache(int64_t num_blocks, int64_t capacity);

  // Brings blocks, repeated or not, into the cache. `changes`: they will be changed. Slots of
  // `written` must be copied before those of `misses` are filled. Throws std::out_of_range for a
  // block that does not exist, and std::length_error for more entries than the capacity.
  void load(const int64_t* blocks, int64_t count, bool changes, Loaded& out);

 private:
  struct Slot {
    int32_t block = -1;
    uint32_t stamp = 0;  // of the last call that used it
    uint8_t count = 0;
    bool is_changed = false;
  };

  int64_t free_slot();

  Buffer<int32_t> slot_of_;  // by block, -1: not in the cache
  Buffer<Slot> slots_;
  int64_t hand_ = 0;
  uint32_t stamp_ = 0;
};

// Writes blocks, in ascending order and each once, from memory with one after the other. Several
// threads write, and neighbours are one write. Returns 0 or an error's number.
int write_blocks(int file, const int64_t* blocks, int64_t count, const char* memory,
                 int64_t block_bytes);

}  // namespace khop::cpu
