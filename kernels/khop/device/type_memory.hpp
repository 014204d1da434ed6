// Memory of a device for one node type: a batch's sample buffer and the table that numbers it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "khop/device/steps/batch_view.hpp"
#include "khop/device/steps/memory.hpp"

namespace khop::device {

template <class Backend>
class TypeMemory {
 public:
  TypeMemory(Backend& backend, int64_t num_ids, bool disjoint)
      : backend_(&backend),
        num_ids_(num_ids),
        disjoint_(disjoint),
        id_bits_(disjoint ? id_bits_for(num_ids) : 0),
        keys_(backend),
        numbers_(backend),
        edges_(backend),
        destinations_(backend),
        nodes_(backend),
        values_(backend),
        slots_(backend) {
    if (num_ids < 0) {
      throw std::invalid_argument("a node type cannot have " + std::to_string(num_ids) + " nodes");
    }
  }

  // Keys of a batch's seeds.
  std::vector<int64_t> seeds;

  int64_t num_ids() const { return num_ids_; }
  int id_bits() const { return id_bits_; }
  bool is_narrow() const { return narrow_; }
  int64_t max_trees() const { return std::numeric_limits<int64_t>::max() >> id_bits_; }

  void check_ids(const int64_t* ids, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] >= 0 && ids[i] < num_ids_) continue;
      throw std::out_of_range("node " + std::to_string(ids[i]) + " does not exist: its type has " +
                              std::to_string(num_ids_) + " nodes");
    }
  }

  int64_t key(int64_t tree, int64_t id) const {
    if (!disjoint_) return id;
    return static_cast<int64_t>(static_cast<uint64_t>(tree) << id_bits_ |
                                static_cast<uint64_t>(id));
  }

  // Makes room for a batch. Returns whether anything has moved.
  bool prepare(int64_t capacity, int64_t num_trees, bool with_edges, bool with_values) {
    if (capacity >= std::numeric_limits<int32_t>::max()) {
      throw std::length_error(
          "a batch may hold at most 2^31 - 1 nodes and edges of one type; use smaller batches or "
          "fan-outs");
    }
    narrow_ = disjoint_ ? num_trees <= (kNarrowLimit - 1) >> id_bits_ : num_ids_ < kNarrowLimit;
    capacity = std::max(capacity, std::exchange(capacity_, 0));  // none, until all of it is there
    bool moved = keys_.reserve(capacity);
    moved |= numbers_.reserve(capacity);
    if (with_edges) moved |= edges_.reserve(capacity);
    moved |= destinations_.reserve(capacity);
    moved |= nodes_.reserve(capacity);
    with_values_ = with_values;
    if (with_values) moved |= values_.reserve(capacity);
    int bits = kMinBits;
    while ((int64_t{1} << bits) < 2 * capacity) ++bits;
    const bool grown = slots_.reserve(int64_t{1} << bits);
    if (grown || bits_ != bits || stamp_ > kMaxStamp - static_cast<uint32_t>(capacity)) {
      bits_ = 0;
      backend_->fill(slots_.data(), 0, (std::size_t{1} << bits) * sizeof(uint64_t));
      bits_ = bits;
      stamp_ = kFirstStamp;
    }
    capacity_ = capacity;
    return moved || grown;
  }

  // A batch begins: its stamp, above all positions of the one before.
  uint32_t take_stamp() {
    const uint32_t stamp = stamp_;
    stamp_ += static_cast<uint32_t>(capacity_);
    return stamp;
  }

  SampleBuffer buffer() const {
    return {keys_.data(),
            numbers_.data(),
            edges_.data(),
            destinations_.data(),
            nodes_.data(),
            with_values_ ? values_.data() : nullptr,
            capacity_,
            num_ids_,
            id_bits_,
            disjoint_,
            {slots_.data(), bits_, narrow_, keys_.data()},
            0,
            0};
  }

 private:
  static constexpr int kMinBits = 10;

  Backend* backend_;
  int64_t num_ids_;
  bool disjoint_;
  int id_bits_;
  bool narrow_ = true;
  int64_t capacity_ = 0;
  bool with_values_ = false;
  int bits_ = 0;
  uint32_t stamp_ = kFirstStamp;
  DeviceArray<Backend, int64_t> keys_;
  DeviceArray<Backend, int32_t> numbers_;
  DeviceArray<Backend, int64_t> edges_;
  DeviceArray<Backend, int32_t> destinations_;
  DeviceArray<Backend, int64_t> nodes_;
  DeviceArray<Backend, float> values_;
  DeviceArray<Backend, uint64_t> slots_;
};

}  // namespace khop::device
