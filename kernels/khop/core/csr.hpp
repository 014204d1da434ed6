// A compressed adjacency: row i's neighbours are indices[indptr[i]] .. indices[indptr[i + 1] - 1].
//
// A partition is such a graph whose row 0 is node `first_row`: rows are local, neighbours are ids
// of the whole graph. `row_ids[i]` is the original id that keys the draws of row i (null: the
// node's id is its original id). Edge i of the arrays is edge `first_edge + i` of the whole graph.
//
// `neighbor_ids[e]` is likewise the original id of edge e's neighbour, for methods whose draws are
// keyed by neighbours.
//
// With `times`, rows are in ascending order of time, and what a draw may see is a prefix of its
// row. With weights, a row also holds running sums of integer weights and a guide into them
// (weights.hpp).
//
// On the CPU row pointers and neighbours have the types of their arrays (`CsrView`). A device reads
// edge types of several widths in one launch, so it asks for the width (`DeviceCsr`): beside a read
// of memory a branch that all threads of a warp take costs nothing, and there is one kernel to
// compile instead of four. So do walks on the CPU, whose steps may be over several edge types.
#pragma once

#include <cstdint>

#include "khop/core/rng.hpp"

namespace khop {

// Integers of 4 or 8 bytes.
struct AnyInts {
  const void* data;
  int width;

  KHOP_HD int64_t operator[](int64_t i) const {
    return width == 4 ? static_cast<const int32_t*>(data)[i] : static_cast<const int64_t*>(data)[i];
  }
};

template <class Indptr, class Indices>
struct CsrArrays {
  Indptr indptr;
  Indices indices;
  const void* row_ids;  // int32_t or int64_t, see row_id_width
  int row_id_width;     // 0 (none), 4 or 8 bytes
  int64_t num_rows;
  int64_t num_edges;
  int64_t first_row;
  int64_t first_edge;
  const int64_t* times = nullptr;
  const uint64_t* weight_sums = nullptr;
  const uint32_t* weight_guide = nullptr;
  const void* neighbor_ids = nullptr;  // int32_t or int64_t, see neighbor_id_width
  int neighbor_id_width = 0;           // 0 (none), 4 or 8 bytes

  // Place of a node's row; outside [0, num_rows) if it has none. Ids come from files and callers:
  // the difference may be beyond 64 bits, and wraps.
  KHOP_HD int64_t row_of(int64_t id) const {
    return static_cast<int64_t>(static_cast<uint64_t>(id) - static_cast<uint64_t>(first_row));
  }

  KHOP_HD uint64_t original_id(int64_t row) const {
    if (row_id_width == 0) return static_cast<uint64_t>(first_row + row);
    return static_cast<uint64_t>(AnyInts{row_ids, row_id_width}[row]);
  }

  // Whether original ids of neighbours are known: where rows have ids of their own, nodes have been
  // renumbered.
  KHOP_HD bool knows_neighbors() const { return row_id_width == 0 || neighbor_id_width != 0; }

  KHOP_HD uint64_t original_neighbor(int64_t edge) const {
    if (neighbor_id_width == 0) return static_cast<uint64_t>(static_cast<int64_t>(indices[edge]));
    return static_cast<uint64_t>(AnyInts{neighbor_ids, neighbor_id_width}[edge]);
  }

  // Row pointers come from files: a row is usable only if it lies within the edge arrays.
  KHOP_HD bool row_is_sound(int64_t begin, int64_t end) const {
    return 0 <= begin && begin <= end && end <= num_edges;
  }

  // One past the last edge of a row, [begin, end), whose time is not after `time`.
  KHOP_HD int64_t visible_end(int64_t begin, int64_t end, int64_t time) const {
    while (begin < end) {
      const int64_t middle = begin + (end - begin) / 2;
      if (times[middle] <= time) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }
};

template <class Ptr, class Col>
using CsrView = CsrArrays<const Ptr*, const Col*>;
using DeviceCsr = CsrArrays<AnyInts, AnyInts>;

}  // namespace khop
