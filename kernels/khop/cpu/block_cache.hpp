// Blocks of a file that stay in memory, for rows that are far smaller than a block.
//
// Blocks are evicted by SIEVE (Zhang et al., SIEVE is Simpler than LRU, NSDI 2024): a hand moves
// from old to new blocks, passes the ones that were used since it was there, and evicts the next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "khop/cpu/buffer.hpp"

namespace khop::cpu {

class BlockCache {
 public:
  static constexpr int64_t kBlock = 4096;

  BlockCache() = default;  // of no blocks
  // Of a file of `file_bytes`, in at most `bytes` of memory.
  BlockCache(int64_t bytes, int64_t file_bytes) {
    const int64_t num_blocks = (file_bytes + kBlock - 1) / kBlock;
    const int64_t left = bytes - num_blocks * static_cast<int64_t>(sizeof(int32_t));
    capacity_ = std::clamp<int64_t>(left / (kBlock + static_cast<int64_t>(sizeof(Slot))), 0,
                                    std::min(num_blocks, int64_t{1} << 30));
    if (capacity_ == 0) return;
    slot_of_.resize(num_blocks);
    std::fill_n(slot_of_.data(), num_blocks, -1);
    slots_.resize(capacity_);
    blocks_.resize(capacity_ * kBlock);
  }

  int64_t capacity() const { return capacity_; }

  // Memory of a block that exists in the file, until the next `insert`. Null: it is not cached.
  const char* find(int64_t block) {
    const int32_t slot = slot_of_[block];
    if (slot < 0) return nullptr;
    slots_[slot].was_used = true;
    return blocks_.data() + slot * kBlock;
  }

  void insert(int64_t block, const char* from) {
    if (slot_of_[block] >= 0) return;
    const int32_t slot = num_slots_ < capacity_ ? static_cast<int32_t>(num_slots_++) : evict();
    std::memcpy(blocks_.data() + slot * kBlock, from, kBlock);
    slot_of_[block] = slot;
    slots_[slot] = {block, -1, newest_, false};
    (newest_ < 0 ? oldest_ : slots_[newest_].newer) = slot;
    newest_ = slot;
  }

 private:
  struct Slot {
    int64_t block;
    int32_t newer, older;
    bool was_used;
  };

  int32_t evict() {
    int32_t slot = hand_ < 0 ? oldest_ : hand_;
    while (slots_[slot].was_used) {
      slots_[slot].was_used = false;
      slot = slots_[slot].newer < 0 ? oldest_ : slots_[slot].newer;
    }
    const Slot& gone = slots_[slot];
    hand_ = gone.newer;
    (gone.newer < 0 ? newest_ : slots_[gone.newer].older) = gone.older;
    (gone.older < 0 ? oldest_ : slots_[gone.older].newer) = gone.newer;
    slot_of_[gone.block] = -1;
    return slot;
  }

  int64_t capacity_ = 0, num_slots_ = 0;
  int32_t newest_ = -1, oldest_ = -1, hand_ = -1;
  Buffer<int32_t> slot_of_;  // of each block, or -1
  Buffer<Slot> slots_;
  Buffer<char> blocks_;
};

}  // namespace khop::cpu
