// The edges of one edge type in one piece: what is induced, and what has reverses.
#pragma once

#include <cstdint>
#include <utility>

#include "khop/device/steps/memory.hpp"
#include "khop/device/steps/reverse.hpp"
#include "khop/device/steps/scan.hpp"
#include "khop/device/steps/write.hpp"

namespace khop::device {

template <class Backend>
class EdgeListOn {
 public:
  explicit EdgeListOn(Backend& backend)
      : backend_(&backend), sources_(backend), destinations_(backend), edges_(backend) {}

  void clear() {
    is_there_ = false;
    size_ = 0;
    with_edges_ = true;
  }

  void make(int64_t size, bool with_edges) {
    sources_.reserve(size);
    destinations_.reserve(size);
    if (with_edges) edges_.reserve(size);
    size_ = size;
    with_edges_ = with_edges;
    is_there_ = true;
  }

  bool is_there() const { return is_there_; }
  bool lost_edges() const { return !with_edges_; }
  int64_t size() const { return size_; }
  EdgeArrays arrays() const {
    return {sources_.data(), destinations_.data(), with_edges_ ? edges_.data() : nullptr};
  }

  void copy(const EdgeArrays& from, int64_t place, int64_t count) {
    const Count items{count};
    backend_->run(items, CopyValues<int32_t>{from.sources, sources_.data() + place});
    backend_->run(items, CopyValues<int32_t>{from.destinations, destinations_.data() + place});
    if (with_edges_) {
      backend_->run(items, CopyValues<int64_t>{from.edges, edges_.data() + place});
    }
  }

  // Becomes `own` with the reverses of `reversed`, sorted, each pair once. Waits.
  void join(const EdgeArrays& own, int64_t num_own, const EdgeArrays& reversed,
            int64_t num_reversed, bool with_edges, int64_t num_destinations) {
    const int64_t total = num_own + num_reversed;
    const Count items{total};
    DeviceArray<Backend, uint64_t> keys(*backend_, total), other_keys(*backend_, total);
    DeviceArray<Backend, int64_t> places(*backend_, total), other_places(*backend_, total);
    DeviceArray<Backend, int64_t> ranks(*backend_, total + 1);
    backend_->run(items, PairKeys{own, reversed, num_own, keys.data(), places.data()});
    int bits = 33;
    while (bits < 64 && (int64_t{1} << (bits - 32)) < num_destinations) ++bits;
    backend_->sort(total, {keys.data(), places.data(), other_keys.data(), other_places.data()},
                   bits);
    sum(*backend_, items, FirstOfKey{keys.data()}, ranks.data());
    int64_t count = 0;
    backend_->download(&count, ranks.data() + total, sizeof(count));
    make(count, with_edges);
    backend_->run(items, WritePairs{keys.data(), places.data(), ranks.data(), own, reversed,
                                    num_own, arrays()});
  }

  // The same edges turned round.
  EdgeListOn mirrored() const {
    EdgeListOn mirror(*backend_);
    mirror.make(size_, false);
    mirror.copy({destinations_.data(), sources_.data(), nullptr}, 0, size_);
    return mirror;
  }

 private:
  Backend* backend_;
  bool is_there_ = false;
  bool with_edges_ = true;
  int64_t size_ = 0;
  DeviceArray<Backend, int32_t> sources_;
  DeviceArray<Backend, int32_t> destinations_;
  DeviceArray<Backend, int64_t> edges_;
};

}  // namespace khop::device
