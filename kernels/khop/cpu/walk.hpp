// Random walks over a graph in memory, from their starts to their ends.
//
// A step reads two cache lines at random: a row pointer, and the drawn neighbour. A biased one
// reads a neighbour more a trial, and the row of the node before, or its table, where it matters.
// Many walks are on their way at a time in each thread, so that memory has as many requests as a
// core can have under way.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "khop/core/csr.hpp"
#include "khop/core/walk.hpp"
#include "khop/cpu/row_tables.hpp"

namespace khop::cpu {

// Steps of walks.
struct WalkPlan {
  std::vector<DeviceCsr> graphs;   // of each edge type; they read the CPU's memory
  std::vector<int32_t> relations;  // edge type of each step
  std::vector<uint64_t> stops;     // chance that a walk ends before each step, of 2^32
  WalkBias bias;
  WalkKeys keys;
  const RowTables* tables;  // of the only edge type of biased walks; else null

  int64_t length() const { return static_cast<int64_t>(relations.size()); }

  // Whether a walk ends before a step.
  bool ends(int64_t walk, int64_t step) const {
    const uint64_t stop = stops[static_cast<std::size_t>(step)];
    return stop != 0 && walk_word(keys.stop(static_cast<uint32_t>(step)), walk) < stop;
  }

  const DeviceCsr& rows_of(int64_t step) const {
    return graphs[static_cast<std::size_t>(relations[static_cast<std::size_t>(step)])];
  }

  // Fetches ahead what finding a node's row before a step reads.
  void prefetch_row(int64_t step, int64_t id) const {
    const DeviceCsr& graph = rows_of(step);
    const int64_t row = graph.row_of(id);
    if (row < 0 || row >= graph.num_rows) return;
    prefetch_entry(graph.indptr, row);
    prefetch_entry(graph.indptr, row + 1);  // one row in sixteen ends on the next line
    if (graph.row_id_width != 0) {
      prefetch_entry({graph.row_ids, graph.row_id_width}, row);
    }
  }
};

// Where walks are written: [count, length + 1] nodes and [count, length] edges, which may be null.
// -1 where a walk has ended.
struct WalkRecord {
  int64_t* nodes;
  int64_t* edges;
  int64_t length;

  void begin(int64_t walk, int64_t node) const { nodes[walk * (length + 1)] = node; }
  void move(int64_t walk, int64_t step, int64_t node, int64_t edge) const {
    nodes[walk * (length + 1) + step + 1] = node;
    if (edges != nullptr) edges[walk * length + step] = edge;
  }
  void end(int64_t walk, int64_t step) const {
    for (; step < length; ++step) move(walk, step, -1, -1);
  }
};

// Walks that wait, for all threads.
class WaitingWalks {
 public:
  WaitingWalks(const int64_t* starts, int64_t count) : starts_(starts), count_(count) {}

  // Takes up to `most` of them, [first, first + result).
  int64_t take(int64_t most, int64_t& first) {
    first = next_.fetch_add(most, std::memory_order_relaxed);
    return first >= count_ ? 0 : count_ - first < most ? count_ - first : most;
  }
  int64_t start(int64_t walk) const { return starts_[walk]; }

 private:
  const int64_t* const starts_;
  const int64_t count_;
  std::atomic<int64_t> next_{0};
};

// Walks from starts[0 .. count). At most `num_threads` threads work, if there is so much to do.
// Throws as span_of.
void random_walks(const WalkPlan& plan, const int64_t* starts, int64_t count,
                  const WalkRecord& record, int num_threads);

}  // namespace khop::cpu
