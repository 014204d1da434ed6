// A set of positions in a row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "khop/core/node_table.hpp"
#include "khop/cpu/buffer.hpp"

namespace khop::cpu {

// Positions already picked in a row too wide to scan.
class PositionSet {
 public:
  void reset(int64_t count) {
    int bits = 8;
    while ((int64_t{1} << bits) < 2 * count) ++bits;
    bits_ = bits;
    slots_.clear();
    slots_.resize(int64_t{1} << bits);
    std::fill_n(slots_.data(), slots_.size(), int64_t{-1});
  }
  bool contains(int64_t position) const { return slots_[find(position)] == position; }
  void add(int64_t position) { slots_[find(position)] = position; }

 private:
  int64_t find(int64_t position) const {
    const int64_t mask = slots_.size() - 1;
    int64_t slot =
        static_cast<int64_t>(slot_index(hash_id(static_cast<uint64_t>(position)), bits_));
    while (slots_[slot] != -1 && slots_[slot] != position) slot = (slot + 1) & mask;
    return slot;
  }

  int bits_ = 0;
  Buffer<int64_t> slots_;
};

}  // namespace khop::cpu
