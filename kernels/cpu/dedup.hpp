// Numbers the nodes of a batch, of one node type, in the order of first appearance.
//
// In a disjoint batch a node is known by its key: the tree it belongs to, then its id. Elsewhere
// there is one tree, number 0, and the key is the id.
#pragma once

#include <cstdint>
#include <limits>

#include "buffer.hpp"
#include "khop/dedup.hpp"

namespace khop {

class NodeSet {
 public:
  // `num_nodes` bounds the ids (exclusive); keys below 2^32 - 1 get the exact, narrow table.
  // Throws std::invalid_argument if it is negative.
  NodeSet(int64_t num_nodes, bool disjoint);

  // Empties the set. The table keeps the size that the last batches needed.
  void clear();

  // Most trees whose keys fit 63 bits.
  int64_t max_trees() const { return std::numeric_limits<int64_t>::max() >> id_bits_; }

  // Says how many trees there are from now on; more may follow.
  void set_num_trees(int64_t num_trees);

  // Appends seeds as they are, duplicates included; a duplicate is found under its first number.
  void add_seeds(const int64_t* keys, int64_t count);

  // Throws std::out_of_range unless ids are below `num_nodes`: of others the keys of a disjoint
  // batch are those of other trees' nodes, or of no tree. Elsewhere an id is its own key.
  template <class Id>
  void check_ids(const Id* ids, int64_t count) const;

  bool holds(int64_t id) const {
    return static_cast<uint64_t>(id) < static_cast<uint64_t>(num_nodes_);
  }

  int64_t key(int64_t tree, int64_t id) const {
    return static_cast<int64_t>(static_cast<uint64_t>(tree) << id_bits_ |
                                static_cast<uint64_t>(id));
  }
  int64_t id_of(int64_t key) const { return key & id_mask_; }
  int64_t tree_of(int64_t key) const { return (key & ~id_mask_) >> id_bits_; }
  int id_bits() const { return id_bits_; }

  // Numbers `count` keys in order, adding those not seen before. Call prefetch for the same keys a
  // few hundred inserts earlier.
  template <class Id>
  void insert(const Id* ids, int64_t count, int32_t* numbers);

  // Number of a key, or -1.
  int32_t find(int64_t key) const { return narrow_ ? find_impl<true>(key) : find_impl<false>(key); }

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
  const int64_t* keys() const { return nodes_.data(); }

 private:
  template <bool kNarrow, class Id>
  void insert_impl(const Id* ids, int64_t count, int32_t* numbers);
  template <bool kNarrow>
  int32_t find_or_add(uint64_t id, bool append_always);
  template <bool kNarrow>
  int32_t find_impl(int64_t key) const;
  void rebuild(int bits);

  int64_t num_nodes_;
  int id_bits_;
  int64_t id_mask_;
  bool narrow_ = true;
  int bits_ = 0;
  Buffer<uint64_t> slots_;
  Buffer<int64_t> nodes_;
};

}  // namespace khop
