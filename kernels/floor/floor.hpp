// Least cost of sampling and gathering: the same memory touched in the same order, with everything
// prefetched, and nothing else done. Benchmarks compare the kernels with it.
#pragma once

#include <cstdint>

#include "khop/cpu/buffer.hpp"
#include "khop/cpu/gather.hpp"

namespace khop::floor {

// The compressed rows that a batch is drawn from.
template <class Ptr, class Col>
struct FloorRows {
  const Ptr* indptr;
  const Col* indices;
  int64_t num_rows;
  int64_t num_edges;
};
template <class Ptr, class Col>
FloorRows(const Ptr*, const Col*, int64_t, int64_t) -> FloorRows<Ptr, Col>;

// A batch that was drawn before: counts[i] edges of rows[i], at positions `edges` of the graph.
struct DrawnBatch {
  const int64_t* rows;
  const int32_t* counts;
  int64_t num_rows;
  const int64_t* edges;
  int64_t num_edges;
  int64_t num_nodes;
};

class SampleFloor {
 public:
  // Touches row pointers, columns and a slot of a table an edge, and writes endpoints and nodes.
  // Returns a sum of what it read. Throws std::out_of_range if the graph has no such row or edge.
  template <class Ptr, class Col>
  uint64_t touch(const FloorRows<Ptr, Col>& graph, const DrawnBatch& batch);

 private:
  cpu::Buffer<uint64_t> table_;
  cpu::Buffer<int64_t> row_;
  cpu::Buffer<int64_t> col_;
  cpu::Buffer<int64_t> nodes_;
};

// Reads a word of each line of `rows` and writes one of each line of `out`, which has room for as
// many. Returns a sum of what it read. Throws std::out_of_range if the table has no such row.
template <class Index>
uint64_t touch_rows(const cpu::RowTable& table, const Index* rows, int64_t count, char* out);

}  // namespace khop::floor
