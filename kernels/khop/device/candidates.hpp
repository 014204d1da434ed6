// The edges of rows, one after the other, and those of them that are kept: memory and steps.
#pragma once

#include <cstdint>

#include "khop/device/steps/candidates.hpp"
#include "khop/device/steps/memory.hpp"
#include "khop/device/steps/scan.hpp"

namespace khop::device {

template <class Backend>
class CandidateEdges {
 public:
  explicit CandidateEdges(Backend& backend)
      : begins_(backend), counts_(backend), offsets_(backend), ranks_(backend), kept_(backend) {}

  // Makes room. Returns whether anything has moved.
  bool reserve(int64_t num_rows, int64_t num_candidates) {
    bool moved = begins_.reserve(num_rows);
    moved |= counts_.reserve(num_rows);
    moved |= offsets_.reserve(num_rows + 1);
    room_ = num_candidates;
    moved |= ranks_.reserve(num_candidates + 1);
    return kept_.reserve(num_candidates) || moved;
  }

  int64_t* begins() const { return begins_.data(); }
  int64_t* counts() const { return counts_.data(); }
  int64_t* offsets() const { return offsets_.data(); }
  int64_t* ranks() const { return ranks_.data(); }
  const int64_t* kept() const { return kept_.data(); }
  const int64_t* num_kept() const { return ranks_.data() + room_; }

  // Sums up the counts of rows; returns how many candidates there are.
  Count span(Backend& backend, Count rows) {
    sum(backend, rows, CountOf64{counts()}, offsets());
    return {room_, offsets() + rows.most};
  }

  Candidates candidates(const int64_t* num_rows) const {
    return {offsets_.data(), begins_.data(), num_rows};
  }

  // Ranks candidates: how many of those before each are kept, for which `keep` returns 1.
  template <class Keep>
  void rank(Backend& backend, Count found, Keep keep) {
    backend.run(found, MarkKept<Keep>{keep, ranks()});
    sum(backend, found, CountOf64{ranks()}, ranks());
  }

  // Keeps those for which `keep` returns 1, in their order.
  template <class Keep>
  void keep(Backend& backend, Count found, Keep keep, const Candidates& candidates) {
    rank(backend, found, keep);
    backend.run(found, CompactEdges{candidates, ranks(), kept_.data()});
  }

 private:
  int64_t room_ = 0;
  DeviceArray<Backend, int64_t> begins_;
  DeviceArray<Backend, int64_t> counts_;
  DeviceArray<Backend, int64_t> offsets_;
  DeviceArray<Backend, int64_t> ranks_;
  DeviceArray<Backend, int64_t> kept_;
};

}  // namespace khop::device
