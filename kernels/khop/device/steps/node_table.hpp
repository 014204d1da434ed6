// Node table of a device: numbers nodes in the order of first appearance, all at the same time.
//
// Seeds and drawn neighbours have positions in one buffer. All of them are inserted at once into
// the table of core/node_table.hpp, whose slots hold positions in place of numbers, and each slot
// keeps the lowest position: the first does not depend on the order in which threads run. A sum
// over the positions that came first then numbers the nodes. Positions, like numbers on the CPU,
// are stamped, so that the table need not be cleared for each batch.
#pragma once

#include <cstdint>

#include "khop/core/node_table.hpp"
#include "khop/device/steps/backend.hpp"

namespace khop::device {

struct NodeTable {
  uint64_t* slots;
  int bits;
  bool narrow;          // all keys fit 32 bits: a tag is the key
  const int64_t* keys;  // by position; written before the step that inserts, unless narrow

  KHOP_HD uint64_t mask() const { return (uint64_t{1} << bits) - 1; }

  // Inserts a position's key; returns the slot that it shares with all positions of this key.
  KHOP_HD int64_t insert(int64_t key, int64_t position, uint32_t stamp) const {
    const auto id = static_cast<uint64_t>(key);
    const uint64_t hash = hash_id(id);
    const uint32_t tag = narrow ? slot_tag<true>(id, hash) : slot_tag<false>(id, hash);
    const uint64_t mine = make_slot(tag, stamp + static_cast<uint32_t>(position));
    for (uint64_t i = slot_index(hash, bits);; i = (i + 1) & mask()) {
      uint64_t slot = atomic_load(&slots[i]);
      if (is_free(slot, stamp)) {
        const uint64_t found = atomic_exchange_if(&slots[i], slot, mine);
        if (found == slot) return static_cast<int64_t>(i);
        slot = found;  // taken in this moment
      }
      if (tag_of(slot) == tag && (narrow || keys[number_of(slot, stamp)] == key)) {
        if (mine < slot) atomic_min(&slots[i], mine);
        return static_cast<int64_t>(i);
      }
    }
  }

  // The first position of what a slot holds.
  KHOP_HD int64_t first_in(int64_t slot, uint32_t stamp) const {
    return number_of(slots[slot], stamp);
  }

  // The first position of a key, or -1.
  KHOP_HD int64_t find(int64_t key, uint32_t stamp) const {
    const auto id = static_cast<uint64_t>(key);
    const uint64_t hash = hash_id(id);
    const uint32_t tag = narrow ? slot_tag<true>(id, hash) : slot_tag<false>(id, hash);
    for (uint64_t i = slot_index(hash, bits);; i = (i + 1) & mask()) {
      const uint64_t slot = slots[i];
      if (is_free(slot, stamp)) return -1;
      if (tag_of(slot) == tag && keys[number_of(slot, stamp)] == key) {
        return number_of(slot, stamp);
      }
    }
  }
};

}  // namespace khop::device
