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

#include "khop/rng.hpp"

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

// A stretch of the axis that is not to be drawn from.
struct Gap {
  uint64_t start;
  uint64_t length;
};

// Where a draw among what lies outside the gaps (ascending, disjoint) falls on the whole axis.
KHOP_HD uint64_t step_over(const Gap* gaps, int64_t num_gaps, uint64_t point) {
  for (int64_t i = 0; i < num_gaps && gaps[i].start <= point; ++i) point += gaps[i].length;
  return point;
}

}  // namespace khop
