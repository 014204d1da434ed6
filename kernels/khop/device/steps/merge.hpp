// A hop whose rows others draw: what they are asked for, how it is answered, and how replies are
// merged. The rows of a hop lie one behind the other, edge type after edge type in the batch's
// order.
#pragma once

#include <cstdint>

#include "khop/device/steps/sample.hpp"

namespace khop::device {

// Entries of drawn edges: the neighbour and, where edges are wanted, the edge behind it.
KHOP_HD int64_t entry_words(bool with_edges) { return with_edges ? 2 : 1; }

// The drawn edges of a hop's rows. The rows are in another order in `entries`.
struct HopReplies {
  const int64_t* counts;   // of each row's edges
  const int64_t* begins;   // where each row's begin among all
  const int64_t* entries;  // of all edges
  int64_t num_rows;
};

struct RepliedEdges {
  HopReplies replies;
  bool with_edges;

  KHOP_HD DrawnEdge operator()(const HopEdges&, int64_t, int64_t row, int64_t j) const {
    const int64_t* const entry =
        replies.entries + (replies.begins[row] + j) * entry_words(with_edges);
    return {entry[0], with_edges ? entry[1] : 0};
  }
};

// The nodes of a frontier: keys and, where they are wanted, the times of their trees.
struct WriteFrontier {
  FrontierView frontier;
  int64_t* keys;
  int64_t* times;  // null: not wanted

  KHOP_HD void operator()(int64_t i) const {
    const int64_t number = *frontier.begin + i;
    const int64_t key = keys[i] = frontier.keys[number];
    if (times != nullptr) times[i] = *frontier.time_of(number, frontier.tree_of(key));
  }
};

// Of the rows that are drawn for others: how many edges each has.
struct WriteCounts {
  const int64_t* offsets;
  int64_t* counts;

  KHOP_HD void operator()(int64_t row) const { counts[row] = offsets[row + 1] - offsets[row]; }
};

// The same of all rows of an edge type.
struct WriteTotals {
  HopEdges edges;
  HopRecord* records;

  KHOP_HD void operator()(int64_t k) const {
    records[k] = {0, edges.start_of(k + 1) - edges.start_of(k)};
  }
};

struct WriteEntries {
  HopEdges edges;
  int64_t* entries;
  bool with_edges;

  KHOP_HD void operator()(int64_t e) const {
    const int64_t row = edges.row_of(e);
    const int64_t k = edges.batch.relation_of_row(row);
    const DrawnEdge drawn = PickedEdges{}(edges, k, row, e - edges.rows.offsets[row]);
    int64_t* const entry = entries + e * entry_words(with_edges);
    entry[0] = drawn.neighbor;
    if (with_edges) entry[1] = drawn.edge;
  }
};

}  // namespace khop::device
