// Draws of rows for others, who build the batches: interface.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/core/hop_options.hpp"
#include "khop/device/graph.hpp"

namespace khop::device {

// Rows of one edge type that one batch asks for. Arrays are on the device.
struct AskedRows {
  GraphArrays graph;
  HopOptions options;    // with the key of the batch's hop
  const int64_t* keys;   // of nodes: their trees are above the bits of ids, in a disjoint batch
  const int64_t* times;  // null: none
  int64_t count;
  int id_bits;
  bool disjoint;
};

// One draw after the other uses the same memory.
class RowDraw {
 public:
  RowDraw() = default;
  RowDraw(const RowDraw&) = delete;
  RowDraw& operator=(const RowDraw&) = delete;
  virtual ~RowDraw() = default;

  // Picks edges of all rows, and writes how many each row has: rows of the first set, then of the
  // others. Waits. Returns how many edges each set has.
  virtual std::vector<int64_t> draw(const std::vector<AskedRows>& asked, int64_t* counts) = 0;
  // Writes the edges of the last draw, row by row: neighbours, each with its edge behind it if
  // these are wanted. Waits for nothing.
  virtual void write(int64_t* entries, bool with_edges) = 0;
};

}  // namespace khop::device
