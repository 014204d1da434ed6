#include "khop/cpu/node_table.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace khop::cpu {
namespace {

constexpr int kMinBits = 10;
constexpr int64_t kMaxNodes = int64_t{1} << 31;

// At most half of the slots are taken: probes stay near one. Twice as many slots cost more in cache
// misses than they save in probes, half as many the other way round (both about a fifth of a
// batch's time).
int bits_for(int64_t count) {
  int bits = kMinBits;
  while ((int64_t{1} << bits) < 2 * count) ++bits;
  return bits;
}

}  // namespace

NodeSet::NodeSet(int64_t num_nodes, bool disjoint)
    : num_nodes_(num_nodes), id_bits_(0), id_mask_(~int64_t{0}) {
  if (num_nodes < 0) {
    throw std::invalid_argument("a node type cannot have " + std::to_string(num_nodes) + " nodes");
  }
  if (disjoint) {
    id_bits_ = id_bits_for(num_nodes);
    id_mask_ = static_cast<int64_t>((uint64_t{1} << id_bits_) - 1);
  } else {
    narrow_ = num_nodes < kNarrowLimit;
  }
  rebuild(kMinBits);
}

void NodeSet::set_num_trees(int64_t num_trees) {
  if (num_trees > max_trees()) {
    throw std::length_error("a disjoint batch of " + std::to_string(num_trees) +
                            " seeds is too large for this graph; use smaller batches");
  }
  const bool narrow = (num_trees << id_bits_) < kNarrowLimit;
  if (narrow == narrow_) return;
  narrow_ = narrow;
  rebuild(bits_);
}

template <class Id>
void NodeSet::check_ids(const Id* ids, int64_t count) const {
  for (int64_t i = 0; i < count; ++i) {
    if (holds(static_cast<int64_t>(ids[i]))) continue;
    throw std::out_of_range("node " + std::to_string(ids[i]) + " does not exist: its type has " +
                            std::to_string(num_nodes_) + " nodes");
  }
}

template void NodeSet::check_ids<int32_t>(const int32_t*, int64_t) const;
template void NodeSet::check_ids<int64_t>(const int64_t*, int64_t) const;

void NodeSet::clear() {
  const int needed = bits_for(nodes_.size());
  const uint32_t beyond = stamp_ + static_cast<uint32_t>(nodes_.size());
  nodes_.clear();
  // One size of slack: a run of small batches must not pay for one large one, nor flip-flop. And
  // the numbers of another batch must fit above the stamp.
  if (bits_ > needed + 1 || beyond > kMaxStamp) {
    rebuild(bits_ > needed + 1 ? needed : bits_);
  } else {
    stamp_ = beyond;
  }
}

void NodeSet::rebuild(int bits) {
  bits_ = bits;
  stamp_ = kFirstStamp;
  slots_.clear();
  slots_.resize(int64_t{1} << bits);
  std::fill_n(slots_.data(), slots_.size(), kFreeSlot);
  const uint64_t mask = static_cast<uint64_t>(slots_.size()) - 1;
  for (int64_t i = 0; i < nodes_.size(); ++i) {
    if (find(nodes_[i]) >= 0) continue;  // seeds may repeat; the first number stands
    const uint64_t id = static_cast<uint64_t>(nodes_[i]);
    const uint64_t hash = hash_id(id);
    uint64_t slot = slot_index(hash, bits_);
    while (!is_free(slots_[static_cast<int64_t>(slot)], stamp_)) slot = (slot + 1) & mask;
    const uint32_t tag = narrow_ ? slot_tag<true>(id, hash) : slot_tag<false>(id, hash);
    slots_[static_cast<int64_t>(slot)] = make_slot(tag, stamp_ + static_cast<uint32_t>(i));
  }
}

void NodeSet::reserve(int64_t count) {
  const int64_t needed = nodes_.size() + count;
  if (needed >= kMaxNodes) {
    throw std::length_error(
        "a batch may hold at most 2^31 - 1 nodes of one type; use smaller "
        "batches or fan-outs");
  }
  if (2 * needed > slots_.size()) rebuild(bits_for(needed));
  nodes_.reserve(needed);
}

template <bool kNarrow>
int32_t NodeSet::find_impl(int64_t key) const {
  const uint64_t hash = hash_id(static_cast<uint64_t>(key));
  const uint32_t tag = slot_tag<kNarrow>(static_cast<uint64_t>(key), hash);
  const int64_t mask = slots_.size() - 1;
  int64_t slot = static_cast<int64_t>(slot_index(hash, bits_));
  for (; !is_free(slots_[slot], stamp_); slot = (slot + 1) & mask) {
    if (tag_of(slots_[slot]) != tag) continue;
    const uint32_t number = number_of(slots_[slot], stamp_);
    // A narrow tag is the key only of keys that are narrow: one from elsewhere may not be.
    if (nodes_[number] == key) return static_cast<int32_t>(number);
  }
  return -1;
}

template int32_t NodeSet::find_impl<true>(int64_t) const;
template int32_t NodeSet::find_impl<false>(int64_t) const;

void NodeSet::add_seeds(const int64_t* keys, int64_t count) {
  reserve(count);
  const auto run = [&](auto inserter) {
    for (int64_t i = 0; i < count; ++i) inserter.append(keys[i]);
  };
  narrow_ ? run(Inserter<true>(*this)) : run(Inserter<false>(*this));
}

void NodeSet::insert(const int64_t* keys, int64_t count, int32_t* numbers) {
  constexpr int64_t kAhead = 32;
  reserve(count);
  const auto run = [&](auto inserter) {
    for (int64_t i = 0; i < std::min(kAhead, count); ++i) inserter.prefetch(keys[i]);
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) inserter.prefetch(keys[i + kAhead]);
      numbers[i] = inserter.number(keys[i]);
    }
  };
  narrow_ ? run(Inserter<true>(*this)) : run(Inserter<false>(*this));
}

}  // namespace khop::cpu
