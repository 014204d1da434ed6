// Draws by weight from several rows at a time, interleaved.
//
// Each draw from a row depends on the one before it and reads two places at random, the guide and
// the sums: while one row waits for them, the others draw.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/core/pick.hpp"
#include "khop/core/weights.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {

class WeightedInterleaved {
 public:
  // Removes all rows.
  void begin(int64_t fanout, bool replace) {
    fanout_ = fanout;
    replace_ = replace;
    pending_.clear();
    gaps_.clear();
  }

  // Edges of a row, by their places in the graph.
  struct Range {
    int64_t begin;
    int64_t end;
  };

  // Adds a row.
  //
  // weights, row_begin: of the whole row, and where it begins.
  // range: what may be drawn; not empty.
  // excluded_positions, num_excluded: edges in it, ascending, that may not.
  // draws: the row's.
  void add(const WeightedRow& weights, int64_t row_begin, Range range,
           const int64_t* excluded_positions, int64_t num_excluded, const NodeDraws& draws) {
    const uint64_t base = weights.before(range.begin - row_begin);
    const uint64_t whole = weights.sums[range.end - 1 - row_begin] - base;
    const int64_t first_gap = gaps_.size();
    gaps_.extend(2 * (num_excluded + (replace_ ? 0 : fanout_)));
    Gaps gaps = gaps_at(first_gap, num_excluded, 0);
    uint64_t closed = 0;
    for (int64_t i = 0; i < num_excluded; ++i) {
      const int64_t position = excluded_positions[i] - row_begin;
      const uint64_t length = weights.weight(position);
      gaps.close_last(weights.before(position) - base, length, closed);
      closed += length;
    }
    pending_.push_back({weights,
                        row_begin,
                        base,
                        whole - closed,
                        0,
                        0,
                        {},
                        DrawStream(draws, true),
                        first_gap,
                        num_excluded,
                        num_excluded,
                        0});
  }

  // Draws from all rows.
  void draw() {
    if (pending_.empty()) return;  // the fan-out may be any number then
    picked_.resize(static_cast<int64_t>(pending_.size()) * fanout_);
    for (int64_t j = 0; j < fanout_; ++j) {
      // After the last draw nothing is left out of another.
      const bool closes = !replace_ && j + 1 < fanout_;
      for (PendingRow& pending : pending_) draw_point(pending);
      for (PendingRow& pending : pending_) look_into_guide(pending);
      int64_t* picked = picked_.data() + j;
      for (PendingRow& pending : pending_) {
        if (pending.total > 0) *picked = take(pending, closes);
        picked += fanout_;
      }
    }
  }

  // What was drawn from a row: places of edges in the graph. Fewer than the fan-out where there
  // were not more that have a weight.
  const int64_t* picked(int64_t row) const { return picked_.data() + row * fanout_; }
  int64_t num_picked(int64_t row) const {
    return pending_[static_cast<std::size_t>(row)].num_picked;
  }

 private:
  // A row between its draws.
  struct PendingRow {
    WeightedRow weights;
    int64_t row_begin;
    uint64_t base;   // weight before what may be drawn
    uint64_t total;  // weight of what may still be drawn
    uint64_t point;  // the draw, among that
    uint64_t place;  // the draw, on the row's axis
    WeightedRow::Stretch stretch;
    DrawStream stream;
    int64_t first_gap;  // in gaps_
    int64_t num_excluded;
    int64_t num_gaps;
    int64_t num_picked;
  };

  // Keys of a row's gaps, then their lengths.
  Gaps gaps_at(int64_t first, int64_t num_excluded, int64_t count) {
    uint64_t* const keys = gaps_.data() + first;
    const int64_t capacity = num_excluded + (replace_ ? 0 : fanout_);
    return {keys, keys + capacity, capacity, count};
  }
  Gaps gaps_of(const PendingRow& pending) {
    return gaps_at(pending.first_gap, pending.num_excluded, pending.num_gaps);
  }

  void draw_point(PendingRow& pending) {
    if (pending.total == 0) return;
    pending.point = pending.stream.below(pending.total);
    pending.place = pending.base + gaps_of(pending).place(pending.point);
    prefetch_line(&pending.weights.guide[guide_bucket(pending.place, pending.weights.count)]);
  }

  static void look_into_guide(PendingRow& pending) {
    if (pending.total == 0) return;
    pending.stretch = pending.weights.stretch(pending.place);
    const int64_t middle = pending.stretch.low + (pending.stretch.high - pending.stretch.low) / 2;
    // Where a position's weight begins is the sum before it, which may lie in another line.
    prefetch_line(&pending.weights.sums[middle]);
    prefetch_line(&pending.weights.sums[middle > 0 ? middle - 1 : 0]);
  }

  int64_t take(PendingRow& pending, bool closes) {
    const int64_t position = pending.weights.find(pending.place, pending.stretch);
    ++pending.num_picked;
    if (closes) {
      const uint64_t before = pending.weights.before(position);
      const uint64_t length = pending.weights.sums[position] - before;
      Gaps gaps = gaps_of(pending);
      gaps.close(pending.point, pending.place - pending.base, before - pending.base, length);
      pending.num_gaps = gaps.size();
      pending.total -= length;
    }
    return pending.row_begin + position;
  }

  int64_t fanout_ = 0;
  bool replace_ = false;
  std::vector<PendingRow> pending_;
  Buffer<uint64_t> gaps_;
  Buffer<int64_t> picked_;  // `fanout` places a row
};

}  // namespace khop::cpu
