// Numbers the nodes of a batch, of one node type, in the order of first appearance.
#pragma once

#include <cstdint>

#include "buffer.hpp"
#include "khop/dedup.hpp"

namespace khop {

class NodeSet {
 public:
  // `num_nodes` bounds the ids (exclusive); ids below 2^32 - 1 get the exact, narrow table.
  explicit NodeSet(int64_t num_nodes);

  // Empties the set. The table keeps the size that the last batches needed.
  void clear();

  // Appends seeds as they are, duplicates included; a duplicate is found under its first number.
  void add_seeds(const int64_t* ids, int64_t count);

  // Numbers `count` ids in order, adding those not seen before. Call prefetch for the same ids a
  // few hundred inserts earlier.
  template <class Id>
  void insert(const Id* ids, int64_t count, int32_t* numbers);

  template <class Id>
  void prefetch(const Id* ids, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t hash = hash_id(static_cast<uint64_t>(ids[i]));
      __builtin_prefetch(&slots_[static_cast<int64_t>(slot_index(hash, bits_))], 1);
    }
  }

  // Makes room for `count` more ids: insert does not grow the table.
  void reserve(int64_t count);

  int64_t size() const { return nodes_.size(); }
  const int64_t* nodes() const { return nodes_.data(); }

 private:
  template <bool kNarrow, class Id>
  void insert_impl(const Id* ids, int64_t count, int32_t* numbers);
  template <bool kNarrow>
  int32_t find_or_add(uint64_t id, bool append_always);
  void rebuild(int bits);

  bool narrow_;
  int bits_ = 0;
  Buffer<uint64_t> slots_;
  Buffer<int64_t> nodes_;
};

}  // namespace khop
