// Node table of the CPU: numbers a batch's nodes of one type in the order of first appearance.
//
// In a disjoint batch a node is known by its key: the tree it belongs to, then its id. Elsewhere
// there is one tree, number 0, and the key is the id.
#pragma once

#include <cstdint>
#include <limits>

#include "khop/core/node_table.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {

class NodeSet {
 public:
  // `num_nodes` bounds the ids (exclusive); keys below 2^32 - 1 get the exact, narrow table.
  // Throws std::invalid_argument if it is negative.
  NodeSet(int64_t num_nodes, bool disjoint);

  // Empties the set. The table keeps the size that the last batches needed, and is not touched.
  void clear();

  // Most trees whose keys fit 63 bits.
  int64_t max_trees() const { return std::numeric_limits<int64_t>::max() >> id_bits_; }

  // Sets the number of trees; later calls may set more.
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
  int64_t num_ids() const { return num_nodes_; }

  // Numbers `count` keys in order, adding those not seen before: slots are prefetched some keys
  // ahead.
  void insert(const int64_t* keys, int64_t count, int32_t* numbers);

  // What numbers keys in a loop: the set's fields, held in registers. The set is out of use until
  // the inserter ends, and must have room for all that it adds.
  template <bool kNarrow>
  class Inserter {
   public:
    explicit Inserter(NodeSet& set)
        : set_(set),
          slots_(set.slots_.data()),
          keys_(set.nodes_.data()),
          size_(static_cast<uint32_t>(set.nodes_.size())),
          stamp_(set.stamp_),
          bits_(set.bits_),
          mask_((uint64_t{1} << set.bits_) - 1) {}
    Inserter(const Inserter&) = delete;
    Inserter& operator=(const Inserter&) = delete;
    ~Inserter() { set_.nodes_.resize(size_); }

    void prefetch(int64_t key) const {
      prefetch_scattered_line_to_write(
          &slots_[slot_index(hash_id(static_cast<uint64_t>(key)), bits_)]);
    }

    // Number of a key, which is added if it is new.
    int32_t number(int64_t key) {
      const uint64_t hash = hash_id(static_cast<uint64_t>(key));
      const uint32_t tag = slot_tag<kNarrow>(static_cast<uint64_t>(key), hash);
      for (uint64_t i = slot_index(hash, bits_);; i = (i + 1) & mask_) {
        const uint64_t slot = slots_[i];
        if (is_free(slot, stamp_)) {
          slots_[i] = make_slot(tag, stamp_ + size_);
          keys_[size_] = key;
          return static_cast<int32_t>(size_++);
        }
        if (tag_of(slot) == tag) {
          const uint32_t found = number_of(slot, stamp_);
          if (kNarrow || keys_[found] == key) return static_cast<int32_t>(found);
        }
      }
    }

    // Adds a key also if it is there.
    void append(int64_t key) {
      const uint32_t before = size_;
      number(key);
      if (size_ == before) keys_[size_++] = key;
    }

   private:
    NodeSet& set_;
    uint64_t* const slots_;
    int64_t* const keys_;
    uint32_t size_;
    const uint32_t stamp_;
    const int bits_;
    const uint64_t mask_;
  };

  // Whether the table is the narrow one: which Inserter to use.
  bool narrow() const { return narrow_; }

  // Number of a key, or -1.
  int32_t find(int64_t key) const { return narrow_ ? find_impl<true>(key) : find_impl<false>(key); }

  template <class Id>
  void prefetch(const Id* ids, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t hash = hash_id(static_cast<uint64_t>(ids[i]));
      prefetch_scattered_line_to_write(&slots_[static_cast<int64_t>(slot_index(hash, bits_))]);
    }
  }

  // Makes room for `count` more ids: insert does not grow the table.
  void reserve(int64_t count);

  int64_t size() const { return nodes_.size(); }
  const int64_t* keys() const { return nodes_.data(); }

 private:
  template <bool kNarrow>
  int32_t find_impl(int64_t key) const;
  void rebuild(int bits);

  int64_t num_nodes_;
  int id_bits_;
  int64_t id_mask_;
  bool narrow_ = true;
  int bits_ = 0;
  uint32_t stamp_ = kFirstStamp;
  Buffer<uint64_t> slots_;
  Buffer<int64_t> nodes_;
};

}  // namespace khop::cpu
