// Walks without bias: blocks of them, of which each step is drawn sixteen at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "khop/cpu/simd.hpp"
#include "khop/cpu/walk.hpp"

namespace khop::cpu {

// Walks that take each step together. Each call of `advance` works on what the one before has
// fetched ahead, and fetches ahead for the next.
class WalkBlock {
 public:
  static constexpr int64_t kWalks = 4 * kLanes;

  WalkBlock(const WalkPlan& plan, const WalkRecord& record) : plan_(plan), record_(record) {}

  bool is_empty() const { return count_ == 0; }

  // Takes up to kWalks new walks that have a step to take. Returns false if there are none.
  bool refill(WaitingWalks& waiting) {
    do {
      int64_t first;
      count_ = waiting.take(kWalks, first);
      if (count_ == 0) return false;
      for (int64_t i = 0; i < count_; ++i) {
        walks_[at(i)] = first + i;
        nodes_[at(i)] = waiting.start(first + i);
        record_.begin(walks_[at(i)], nodes_[at(i)]);
      }
      step_ = 0;
      arrive();
    } while (is_empty());
    return true;
  }

  void advance() {
    if (draws_) {
      draw();
    } else {
      move();
    }
  }

 private:
  static std::size_t at(int64_t i) { return static_cast<std::size_t>(i); }

  // Ends walks that are to end before the next step, and fetches the others' rows ahead.
  void arrive() {
    const bool over = step_ == plan_.length();
    int64_t kept = 0;
    for (int64_t i = 0; i < count_ && !over; ++i) {
      if (plan_.ends(walks_[at(i)], step_)) {
        record_.end(walks_[at(i)], step_);
        continue;
      }
      plan_.prefetch_row(step_, nodes_[at(i)]);
      walks_[at(kept)] = walks_[at(i)];
      nodes_[at(kept++)] = nodes_[at(i)];
    }
    count_ = kept;
    draws_ = true;
  }

  // Draws an edge for each walk; those at nodes without neighbours end.
  void draw() {
    const DeviceCsr& graph = plan_.rows_of(step_);
    const uint64_t key = plan_.keys.step(static_cast<uint32_t>(step_), 0);
    int64_t kept = 0;
    for (int64_t i = 0; i < count_; ++i) {
      const RowSpan row = span_of(graph, nodes_[at(i)]);
      if (row.degree() == 0) {
        record_.end(walks_[at(i)], step_);
        continue;
      }
      walks_[at(kept)] = walks_[at(i)];
      rows_[at(kept++)] = row;
    }
    count_ = kept;
    for (int64_t first = 0; first < count_; first += kLanes) {
      draw_lanes(graph, key, first, std::min<int64_t>(kLanes, count_ - first));
    }
    for (int64_t i = 0; i < count_; ++i) prefetch_entry(graph.indices, edges_[at(i)]);
    draws_ = false;
  }

  void draw_lanes(const DeviceCsr& graph, uint64_t key, int64_t first, int64_t count) {
    SimdRows lanes{};
    std::fill_n(lanes.degree, kLanes, 1u);
    for (int64_t i = 0; i < count; ++i) {
      const RowSpan& row = rows_[at(first + i)];
      const uint64_t node = graph.original_id(row.row);
      lanes.node_low[i] = static_cast<uint32_t>(node);
      lanes.node_high[i] = static_cast<uint32_t>(node >> 32);
      lanes.tree[i] = static_cast<uint32_t>(walks_[at(first + i)]);
      if (!is_wide(row)) lanes.degree[i] = static_cast<uint32_t>(row.degree());
    }
    std::array<uint32_t, kLanes> picks;
    pick_(key, lanes, 1, true, picks.data());
    for (int64_t i = 0; i < count; ++i) {
      const RowSpan& row = rows_[at(first + i)];
      const int64_t place = is_wide(row) ? walk_pick(key, graph.original_id(row.row),
                                                     walks_[at(first + i)], row.degree())
                                         : picks[at(i)];
      edges_[at(first + i)] = row.begin + place;
    }
  }

  static bool is_wide(const RowSpan& row) {
    return row.degree() > static_cast<int64_t>(kWideDegree);
  }

  void move() {
    const DeviceCsr& graph = plan_.rows_of(step_);
    for (int64_t i = 0; i < count_; ++i) {
      nodes_[at(i)] = graph.indices[edges_[at(i)]];
      record_.move(walks_[at(i)], step_, nodes_[at(i)], graph.first_edge + edges_[at(i)]);
    }
    ++step_;
    arrive();
  }

  const WalkPlan& plan_;
  const WalkRecord& record_;
  const PickFunction pick_ = simd_pickers().front().pick;
  int64_t count_ = 0;
  int64_t step_ = 0;
  bool draws_ = true;
  std::array<int64_t, kWalks> walks_;
  std::array<int64_t, kWalks> nodes_;
  std::array<RowSpan, kWalks> rows_;
  std::array<int64_t, kWalks> edges_;
};

inline void walk_uniformly(const WalkPlan& plan, const WalkRecord& record, WaitingWalks& waiting) {
  std::array<WalkBlock, 4> blocks{WalkBlock(plan, record), WalkBlock(plan, record),
                                  WalkBlock(plan, record), WalkBlock(plan, record)};
  for (bool any = true; any;) {
    any = false;
    for (WalkBlock& block : blocks) {
      if (block.is_empty() && !block.refill(waiting)) continue;
      block.advance();
      any = true;
    }
  }
}

}  // namespace khop::cpu
