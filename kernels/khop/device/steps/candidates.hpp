// Edges of which only some are kept: all edges of a few rows one after the other, an item each.
#pragma once

#include <cstdint>

#include "khop/device/steps/batch_view.hpp"

namespace khop::device {

// The candidates of rows.
struct Candidates {
  const int64_t* offsets;  // a row each, and their end
  const int64_t* begins;   // first edge of each row
  const int64_t* num_rows;
  KHOP_HD int64_t row_of(int64_t c) const { return owner_of(offsets, *num_rows, c); }
  KHOP_HD int64_t edge_of(int64_t row, int64_t c) const { return begins[row] + c - offsets[row]; }
};

// How many edges of a row may be drawn at most, where it is taken whole, and where they begin.
struct SpanRows {
  DeviceCsr graph;
  FrontierView frontier;
  DeviceError* error;
  int64_t* begins;
  int64_t* counts;

  KHOP_HD void operator()(int64_t i) const {
    const Row row = find_row(graph, frontier, i, error);
    begins[i] = row.begin;
    counts[i] = row.end - row.begin;
  }
};

// As SpanRows, of a hop's rows: those that are not filtered have no candidates.
struct SpanFilteredRows {
  BatchView batch;
  const HopStep* steps;
  int64_t* begins;
  int64_t* counts;

  KHOP_HD void operator()(int64_t i) const {
    const int64_t k = batch.relation_of_row(i);
    begins[i] = counts[i] = 0;
    if (steps[k].mode != RowMode::kFiltered) return;
    const RelationView& relation = batch.relations[k];
    const FrontierView frontier = batch.frontier_of(relation);
    SpanRows{relation.graph, frontier, batch.error, begins + batch.row_starts[k],
             counts + batch.row_starts[k]}(i - batch.row_starts[k]);
  }
};

// Whether an edge of a row that is taken whole is drawn: not excluded, and with a weight.
struct KeepEdges {
  BatchView batch;
  const HopStep* steps;
  Candidates candidates;

  KHOP_HD int64_t operator()(int64_t c) const {
    const int64_t i = candidates.row_of(c);
    const int64_t k = batch.relation_of_row(i);
    const RelationView& relation = batch.relations[k];
    const int64_t edge = candidates.edge_of(i, c);
    if (relation.excluded.contains(edge)) return 0;
    if (!steps[k].options.weighted) return 1;
    const uint64_t* const sums = relation.graph.weight_sums;
    const uint64_t before = edge == candidates.begins[i] ? 0 : sums[edge - 1];
    return sums[edge] > before ? 1 : 0;
  }
};

// Notes for each candidate whether it is kept. To sum that up is left to code that all kinds of
// candidates share: each instance of a sum takes long to compile.
template <class Keep>
struct MarkKept {
  Keep keep;
  int64_t* marks;
  KHOP_HD void operator()(int64_t c) const { marks[c] = keep(c); }
};

// Puts those that are kept (ranks: how many are before each) one after the other.
struct CompactEdges {
  Candidates candidates;
  const int64_t* ranks;
  int64_t* kept;

  KHOP_HD void operator()(int64_t c) const {
    if (ranks[c + 1] == ranks[c]) return;
    kept[ranks[c]] = candidates.edge_of(candidates.row_of(c), c);
  }
};

// Where the candidates of each row begin among those that are kept.
struct FilteredRows {
  const int64_t* offsets;
  const int64_t* ranks;
  int64_t most;  // candidates that there is room for

  KHOP_HD int64_t first_kept(int64_t row) const {
    return ranks[offsets[row] < most ? offsets[row] : most];
  }
};

}  // namespace khop::device
