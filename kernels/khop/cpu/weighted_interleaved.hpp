// Draws by weight from several rows, which take turns.
//
// Each draw from a row depends on the one before it and reads two places at random, the guide and
// the sums: while one row waits for them, the others draw.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/core/pick.hpp"
#include "khop/core/weights.hpp"
#include "khop/cpu/buffer.hpp"

namespace khop {

class WeightedTurns {
 public:
  // Begins anew, with no rows.
  void begin(int64_t fanout, bool replace) {
    fanout_ = fanout;
    replace_ = replace;
    turns_.clear();
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
  // holes, num_holes: edges in it, ascending, that may not.
  // draws: the row's.
  void add(const WeightedRow& weights, int64_t row_begin, Range range, const int64_t* holes,
           int64_t num_holes, const NodeDraws& draws) {
    const uint64_t base = weights.before(range.begin - row_begin);
    const uint64_t whole = weights.sums[range.end - 1 - row_begin] - base;
    const int64_t first_gap = gaps_.size();
    gaps_.extend(2 * (num_holes + (replace_ ? 0 : fanout_)));
    Gaps gaps = gaps_at(first_gap, num_holes, 0);
    uint64_t closed = 0;
    for (int64_t i = 0; i < num_holes; ++i) {
      const int64_t position = holes[i] - row_begin;
      const uint64_t length = weights.weight(position);
      gaps.close_last(weights.before(position) - base, length, closed);
      closed += length;
    }
    turns_.push_back({weights,
                      row_begin,
                      base,
                      whole - closed,
                      0,
                      0,
                      {},
                      DrawStream(draws, true),
                      first_gap,
                      num_holes,
                      num_holes,
                      0});
  }

  // Draws from all rows.
  void draw() {
    if (turns_.empty()) return;  // the fan-out may be any number then
    picked_.resize(static_cast<int64_t>(turns_.size()) * fanout_);
    for (int64_t j = 0; j < fanout_; ++j) {
      // After the last draw nothing is left out of another.
      const bool closes = !replace_ && j + 1 < fanout_;
      for (Turn& turn : turns_) draw_point(turn);
      for (Turn& turn : turns_) look_into_guide(turn);
      int64_t* picked = picked_.data() + j;
      for (Turn& turn : turns_) {
        if (turn.total > 0) *picked = take(turn, closes);
        picked += fanout_;
      }
    }
  }

  // What was drawn from a row: places of edges in the graph. Fewer than the fan-out where there
  // were not more that have a weight.
  const int64_t* picked(int64_t row) const { return picked_.data() + row * fanout_; }
  int64_t num_picked(int64_t row) const { return turns_[static_cast<std::size_t>(row)].num_picked; }

 private:
  // A row between its draws.
  struct Turn {
    WeightedRow weights;
    int64_t row_begin;
    uint64_t base;   // weight before what may be drawn
    uint64_t total;  // weight of what may still be drawn
    uint64_t point;  // the draw, among that
    uint64_t place;  // the draw, on the row's axis
    WeightedRow::Stretch stretch;
    DrawStream stream;
    int64_t first_gap;  // in gaps_
    int64_t num_holes;
    int64_t num_gaps;
    int64_t num_picked;
  };

  // Keys of a row's gaps, then their lengths.
  Gaps gaps_at(int64_t first, int64_t num_holes, int64_t count) {
    uint64_t* const keys = gaps_.data() + first;
    const int64_t capacity = num_holes + (replace_ ? 0 : fanout_);
    return {keys, keys + capacity, capacity, count};
  }
  Gaps gaps_of(const Turn& turn) { return gaps_at(turn.first_gap, turn.num_holes, turn.num_gaps); }

  void draw_point(Turn& turn) {
    if (turn.total == 0) return;
    turn.point = turn.stream.below(turn.total);
    turn.place = turn.base + gaps_of(turn).place(turn.point);
    __builtin_prefetch(&turn.weights.guide[guide_bucket(turn.place, turn.weights.count)]);
  }

  static void look_into_guide(Turn& turn) {
    if (turn.total == 0) return;
    turn.stretch = turn.weights.stretch(turn.place);
    const int64_t middle = turn.stretch.low + (turn.stretch.high - turn.stretch.low) / 2;
    // Where a position's weight begins is the sum before it, which may lie in another line.
    __builtin_prefetch(&turn.weights.sums[middle]);
    __builtin_prefetch(&turn.weights.sums[middle > 0 ? middle - 1 : 0]);
  }

  int64_t take(Turn& turn, bool closes) {
    const int64_t position = turn.weights.find(turn.place, turn.stretch);
    ++turn.num_picked;
    if (closes) {
      const uint64_t before = turn.weights.before(position);
      const uint64_t length = turn.weights.sums[position] - before;
      Gaps gaps = gaps_of(turn);
      gaps.close(turn.point, turn.place - turn.base, before - turn.base, length);
      turn.num_gaps = gaps.size();
      turn.total -= length;
    }
    return turn.row_begin + position;
  }

  int64_t fanout_ = 0;
  bool replace_ = false;
  std::vector<Turn> turns_;
  Buffer<uint64_t> gaps_;
  Buffer<int64_t> picked_;  // `fanout` places a row
};

}  // namespace khop
