// Numbering of nodes by first appearance: the slots that the CPU's and devices' tables share.
//
// A table maps a node id to its number in the batch. Nodes are numbered in the order in which they
// first appear in the stream of seeds and drawn neighbours. A slot is one 64-bit word: the id's tag
// in the upper half, in the lower its number, counted from the batch's stamp. The next batch begins
// at a stamp beyond all numbers of this one, so that a slot below the stamp is free: tables are not
// cleared. Where all ids fit 32 bits the tag is the id itself and a slot is exact; wider ids keep
// 32 hash bits as tag, confirmed against the node list.
#pragma once

#include <cstdint>

#include "khop/core/rng.hpp"

namespace khop {

// In a slot that was never taken.
constexpr uint64_t kFreeSlot = 0;
constexpr uint32_t kFirstStamp = 1;

// Keys below this get the exact, narrow table.
constexpr int64_t kNarrowLimit = 0xFFFFFFFF;
// Stamps above this leave no room for the numbers of a batch.
constexpr uint32_t kMaxStamp = uint32_t{1} << 31;

// Bits that ids below `num_nodes` take in the key of a disjoint batch.
KHOP_HD int id_bits_for(int64_t num_nodes) {
  int bits = 0;
  while (bits < 63 && (int64_t{1} << bits) < num_nodes) ++bits;
  return bits;
}

// Fibonacci hashing; the upper bits are the best mixed, so a table takes its index from the top.
KHOP_HD uint64_t hash_id(uint64_t id) { return id * 0x9E3779B97F4A7C15u; }

KHOP_HD uint64_t slot_index(uint64_t hash, int table_bits) { return hash >> (64 - table_bits); }

template <bool kNarrow>
KHOP_HD uint32_t slot_tag(uint64_t id, uint64_t hash) {
  return kNarrow ? static_cast<uint32_t>(id) : static_cast<uint32_t>(hash);
}

KHOP_HD uint64_t make_slot(uint32_t tag, uint32_t stamped_number) {
  return static_cast<uint64_t>(tag) << 32 | stamped_number;
}
KHOP_HD uint32_t tag_of(uint64_t slot) { return static_cast<uint32_t>(slot >> 32); }
KHOP_HD bool is_free(uint64_t slot, uint32_t stamp) { return static_cast<uint32_t>(slot) < stamp; }
KHOP_HD uint32_t number_of(uint64_t slot, uint32_t stamp) {
  return static_cast<uint32_t>(slot) - stamp;
}

}  // namespace khop
