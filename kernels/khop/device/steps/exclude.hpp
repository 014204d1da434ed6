// Finds the edges that a batch must not draw: those that join an excluded pair of nodes.
//
// Rows of pairs are few, so all their edges are looked at once, before the first hop, an item an
// edge. What is found lies in ascending order, and a row's share of it is a stretch.
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"
#include "khop/core/eligible.hpp"
#include "khop/device/steps/backend.hpp"
#include "khop/device/steps/candidates.hpp"

namespace khop::device {

// Rows and neighbours of links, whose edges are excluded.
struct LinkPairs {
  const int64_t* rows;
  const int64_t* neighbors;
  int neighbor_bits;
  uint64_t* keys;
  int64_t* places;

  KHOP_HD void operator()(int64_t i) const {
    keys[i] = static_cast<uint64_t>(rows[i]) << neighbor_bits | static_cast<uint64_t>(neighbors[i]);
    places[i] = i;
  }
};

// Notes the first pair of each row, of sorted keys.
struct MarkRows {
  const uint64_t* keys;
  int neighbor_bits;
  int64_t* marks;

  KHOP_HD void operator()(int64_t i) const {
    marks[i] = i == 0 || keys[i] >> neighbor_bits != keys[i - 1] >> neighbor_bits ? 1 : 0;
  }
};

// Writes the list of pairs that the host makes of others.
struct ListPairs {
  const uint64_t* keys;
  const int64_t* ranks;  // rows before each pair
  int neighbor_bits;
  int64_t count;
  int64_t* rows;
  int64_t* firsts;
  int64_t* neighbors;
  int64_t* num_rows;

  KHOP_HD void operator()(int64_t i) const {
    neighbors[i] = static_cast<int64_t>(keys[i] & ((uint64_t{1} << neighbor_bits) - 1));
    if (ranks[i + 1] != ranks[i]) {
      rows[ranks[i]] = static_cast<int64_t>(keys[i] >> neighbor_bits);
      firsts[ranks[i]] = i;
    }
    if (i > 0) return;
    *num_rows = ranks[count];
    firsts[ranks[count]] = count;
  }
};

// Pairs by row: neighbours [firsts[k], firsts[k + 1]) of row rows[k], ascending, as rows are.
struct PairList {
  const int64_t* rows;
  const int64_t* firsts;
  const int64_t* neighbors;
};

struct SpanPairs {
  DeviceCsr graph;
  PairList pairs;
  DeviceError* error;
  int64_t* begins;
  int64_t* counts;

  KHOP_HD void operator()(int64_t k) const {
    const int64_t row = pairs.rows[k] - graph.first_row;
    begins[k] = counts[k] = 0;
    if (row < 0 || row >= graph.num_rows) return;  // such a pair is no edge
    const int64_t begin = graph.indptr[row];
    const int64_t end = graph.indptr[row + 1];
    const bool sound = graph.row_is_sound(begin, end);
    if (!sound) error->report(DeviceError::kCorruptRow, row);
    begins[k] = sound ? begin : 0;
    counts[k] = sound ? end - begin : 0;
  }
};

struct IsExcluded {
  DeviceCsr graph;
  PairList pairs;
  Candidates candidates;

  KHOP_HD int64_t operator()(int64_t c) const {
    const int64_t k = candidates.row_of(c);
    const int64_t neighbor = graph.indices[candidates.edge_of(k, c)];
    const int64_t first = pairs.firsts[k];
    const int64_t count = pairs.firsts[k + 1] - first;
    const int64_t place = first_not_below(pairs.neighbors + first, count, neighbor);
    return place < count && pairs.neighbors[first + place] == neighbor ? 1 : 0;
  }
};

// One item: notes where the rows of pairs have more edges than there was room for.
struct EndExclusion {
  const int64_t* candidates;
  int64_t capacity;
  Needs* needs;
  KHOP_HD void operator()(int64_t) const {
    Needs::note(needs->candidates, *candidates);
    if (*candidates > capacity) needs->exceeded = 1;
  }
};

}  // namespace khop::device
