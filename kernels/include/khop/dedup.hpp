// First-appearance numbering: the contract that CPU and CUDA tables share.
//
// A table maps a node id to its number in the batch. Nodes are numbered in the order in which they
// first appear in the stream of seeds and drawn neighbours. A slot is one 64-bit word: the id's tag
// in the upper half, its number in the lower. Where all ids fit 32 bits the tag is the id itself
// and a slot is exact; wider ids keep 32 hash bits as tag, confirmed against the node list.
#pragma once

#include <cstdint>

#include "khop/rng.hpp"

namespace khop {

constexpr uint64_t kEmptySlot = ~uint64_t{0};

// Fibonacci hashing; the upper bits are the best mixed, so a table takes its index from the top.
KHOP_HD uint64_t hash_id(uint64_t id) { return id * 0x9E3779B97F4A7C15u; }

KHOP_HD uint64_t slot_index(uint64_t hash, int table_bits) { return hash >> (64 - table_bits); }

template <bool kNarrow>
KHOP_HD uint32_t slot_tag(uint64_t id, uint64_t hash) {
  return kNarrow ? static_cast<uint32_t>(id) : static_cast<uint32_t>(hash);
}

KHOP_HD uint64_t make_slot(uint32_t tag, uint32_t number) {
  return static_cast<uint64_t>(tag) << 32 | number;
}
KHOP_HD uint32_t tag_of(uint64_t slot) { return static_cast<uint32_t>(slot >> 32); }
KHOP_HD uint32_t number_of(uint64_t slot) { return static_cast<uint32_t>(slot); }

}  // namespace khop
