// Blocks of a file that stay in memory, for rows that are far smaller than a block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "khop/cpu/buffer.hpp"
#include "khop/cpu/slot_lists.hpp"

namespace khop::cpu {

class BlockCache {
 public:
  static constexpr int64_t kBlock = 4096;

  BlockCache() = default;  // of no blocks
  // Of a file of `file_bytes`, in at most `bytes` of memory.
  BlockCache(int64_t bytes, int64_t file_bytes) {
    const int64_t num_blocks = (file_bytes + kBlock - 1) / kBlock;
    const int64_t left = bytes - num_blocks * static_cast<int64_t>(sizeof(int32_t));
    slots_ = SieveSlots(std::min(left / (kBlock + kSlotBytes), num_blocks));
    if (slots_.capacity() == 0) return;
    slot_of_.resize(num_blocks);
    std::fill_n(slot_of_.data(), num_blocks, -1);
    block_of_.resize(slots_.capacity());
    std::fill_n(block_of_.data(), block_of_.size(), -1);
    blocks_.resize(slots_.capacity() * kBlock);
  }

  int64_t capacity() const { return slots_.capacity(); }

  // Memory of a block that exists in the file, until the next `insert`. Null: it is not cached.
  const char* find(int64_t block) {
    const int32_t slot = slot_of_[block];
    if (slot < 0) return nullptr;
    slots_.use(slot);
    return blocks_.data() + slot * kBlock;
  }

  void insert(int64_t block, const char* from) {
    if (slot_of_[block] >= 0) return;
    const int32_t slot = slots_.insert();
    if (block_of_[slot] >= 0) slot_of_[block_of_[slot]] = -1;
    slot_of_[block] = slot;
    block_of_[slot] = block;
    std::memcpy(blocks_.data() + slot * kBlock, from, kBlock);
  }

 private:
  static constexpr int64_t kSlotBytes = 24;

  SieveSlots slots_;
  Buffer<int32_t> slot_of_;   // of each block, or -1
  Buffer<int64_t> block_of_;  // of each slot, or -1
  Buffer<char> blocks_;
};

}  // namespace khop::cpu
