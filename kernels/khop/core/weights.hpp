// Weighted draws from a row, by running sums of integer weights and a guide into them.
//
// A row of n positions stores weight_sums, the inclusive running sums of weights that were scaled
// to add up to about 2^62, and weight_guide, an index of n buckets over the same axis: indexed
// search (Chen & Asau, "On generating random variates from an empirical distribution", AIIE
// Transactions 6(2), 1974). A draw from a whole row costs one look into the guide and, on average
// over the row, less than one halving of the stretch that it names, whatever the degree and the
// weights: the stretches of all buckets add up to the row. A draw from a part of a row, before a
// time or without what was picked already, falls into few buckets if that part weighs little beside
// the rest, and then costs more; never more halvings than the logarithm of the degree.
//
// Sums, unlike alias tables, also serve prefixes of a row (what a draw in the past may see) and
// rows some of whose positions are not to be drawn (again): these leave gaps on the axis that a
// draw steps over, so that draws without replacement are exact and need no rejection. Steps over
// gaps grow with the picks made and the pairs excluded, not with the degree.
#pragma once

#include <cstdint>

#include "khop/core/rng.hpp"

namespace khop {

constexpr int kWeightBits = 62;

// Bucket of the guide that a point of a row of `count` positions falls into. Rounding may carry a
// row's sum a little past 2^62.
KHOP_HD int64_t guide_bucket(uint64_t point, int64_t count) {
  const uint64_t limit = (uint64_t{1} << kWeightBits) - 1;
  if (point > limit) point = limit;
  return static_cast<int64_t>(bounded64(point << (64 - kWeightBits), static_cast<uint64_t>(count)));
}

// The sums of one row.
struct WeightedRow {
  const uint64_t* sums;
  const uint32_t* guide;
  int64_t count;

  // Sum of the weights before a position.
  KHOP_HD uint64_t before(int64_t position) const { return position == 0 ? 0 : sums[position - 1]; }
  KHOP_HD uint64_t weight(int64_t position) const { return sums[position] - before(position); }

  static constexpr int64_t kShort = 4;

  // Positions [low, high], one of which holds a point.
  struct Stretch {
    int64_t low;
    int64_t high;
  };

  KHOP_HD Stretch stretch(uint64_t point) const {
    const int64_t bucket = guide_bucket(point, count);
    int64_t low = guide[bucket];
    int64_t high = bucket + 1 < count ? static_cast<int64_t>(guide[bucket + 1]) : count - 1;
    // A damaged file must not lead out of the row.
    if (low >= count) low = 0;
    if (high >= count) high = count - 1;
    return {low, high};
  }

  // The position whose interval [before, sum) holds `point`, which must be below the row's sum.
  KHOP_HD int64_t find(uint64_t point, Stretch in) const {
    if (in.high - in.low <= kShort) {  // nearly always; no branch that depends on the draw
      int64_t found = in.low;
      for (int64_t i = in.low; i < in.low + kShort; ++i) {
        const bool within = i < in.high;
        found += static_cast<int64_t>(within & (sums[within ? i : in.low] <= point));
      }
      return found;
    }
    while (in.low < in.high) {
      const int64_t middle = in.low + (in.high - in.low) / 2;
      if (sums[middle] > point) {
        in.high = middle;
      } else {
        in.low = middle + 1;
      }
    }
    return in.low;
  }
  KHOP_HD int64_t find(uint64_t point) const { return find(point, stretch(point)); }
};

// The stretches of a row's axis that are not to be drawn from (again): gaps. Draws are points of
// what is left, counted without the gaps.
//
// The key of a gap is the first point that lies behind it: a point is moved by the lengths of all
// gaps whose key it reaches. Few gaps are looked at all, in the order in which they were made, and
// without a branch that depends on the draw. Where there may be many, they are kept in order, with
// running sums of their lengths, and searched.
class Gaps {
 public:
  // Keys and lengths have room for `capacity` gaps, `count` of which are there.
  KHOP_HD Gaps(uint64_t* keys, uint64_t* lengths, int64_t capacity, int64_t count)
      : keys_(keys), lengths_(lengths), in_order_(capacity > kFew), count_(count) {}

  KHOP_HD int64_t size() const { return count_; }

  // Where a point of what is left lies on the whole axis.
  KHOP_HD uint64_t place(uint64_t point) const {
    if (in_order_) {
      const int64_t reached = num_reached(point);
      return reached == 0 ? point : point + lengths_[reached - 1];
    }
    uint64_t moved = point;
    for (int64_t i = 0; i < count_; ++i) moved += lengths_[i] & mask(keys_[i] <= point);
    return moved;
  }

  // Makes a gap of the stretch around a point that lies at `place`; `start` is where it begins.
  KHOP_HD void close(uint64_t point, uint64_t place, uint64_t start, uint64_t length) {
    if (!in_order_) {
      for (int64_t i = 0; i < count_; ++i) keys_[i] -= length & mask(keys_[i] > point);
      close_last(start, length, place - point);
      return;
    }
    const int64_t reached = num_reached(point);
    for (int64_t i = count_; i > reached; --i) {
      keys_[i] = keys_[i - 1] - length;
      lengths_[i] = lengths_[i - 1] + length;
    }
    ++count_;
    put(reached, start, length, place - point);
  }

  // Makes a gap behind all others, whose lengths add up to `before`.
  KHOP_HD void close_last(uint64_t start, uint64_t length, uint64_t before) {
    put(count_++, start, length, before);
  }

 private:
  static constexpr int64_t kFew = 32;

  // All bits or none. Compilers make a branch of a conditional expression here.
  static KHOP_HD uint64_t mask(bool all) { return uint64_t{0} - static_cast<uint64_t>(all); }

  KHOP_HD void put(int64_t index, uint64_t start, uint64_t length, uint64_t before) {
    keys_[index] = start - before;
    lengths_[index] = in_order_ ? before + length : length;
  }

  // Number of gaps, in order, that a point lies behind.
  KHOP_HD int64_t num_reached(uint64_t point) const {
    int64_t low = 0;
    int64_t high = count_;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (keys_[middle] <= point) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  uint64_t* keys_;
  uint64_t* lengths_;  // of each, or running sums of them
  bool in_order_;
  int64_t count_;
};

}  // namespace khop
