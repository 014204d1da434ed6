// Tables for drawing by weight in constant expected time; core/weights.hpp describes how they are
// read.
//
// Each row keeps its cumulative weights as integers, scaled to about 2^62, and a guide of as many
// buckets as it has positions. Cost: 12 bytes an edge, and one pass over the edges to build.
#pragma once

#include <cstdint>

#include "khop/core/weights.hpp"

namespace khop::cpu {

// Why a row has no table.
struct BadWeight {
  enum class Kind { kNone, kWeight, kSum, kRow, kTooLong };
  Kind kind = Kind::kNone;
  int64_t row = -1;
  int64_t edge = -1;   // of a weight that is negative, infinite or not a number
  double value = 0.0;  // the weight, or the sum that is too large for a double
};

// Fills sums[num_edges] and guide[num_edges]. Of a row with sum s > 0, weight w becomes the integer
// max(1, floor(w * (2^62 / s))), or 0 if w is 0: whatever has a weight can be drawn. `sums` are
// cumulative within a row, its own weight included. guide[b] is the first position that any number
// of bucket b or above falls on (the last position if there is none), a number u being of bucket
// min(n - 1, u * n / 2^62) in a row of n positions. Stops at the first row that has no table.
template <class Ptr, class Weight>
BadWeight build_weight_table(const Ptr* indptr, int64_t num_rows, const Weight* weights,
                             int64_t num_edges, uint64_t* sums, uint32_t* guide);

}  // namespace khop::cpu
