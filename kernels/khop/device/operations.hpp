// Arguments of operations on a device, for integers of any width; pointers are to device memory.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/core/csr.hpp"
#include "khop/core/walk.hpp"
#include "khop/device/steps/convert.hpp"

namespace khop::device {

struct GraphArrays;

struct AnyIntsOut {
  void* data;  // null: not wanted
  int width;
};

// A side of an edge list.
struct EdgeEnds {
  AnyInts ids;
  const int64_t* map;  // null: the ids themselves
  int64_t num_ids;     // ids are in [0, num_ids)
  int64_t num_nodes;   // as are, in [0, num_nodes), the values of the map
};

struct CooEdges {
  EdgeEnds keys;
  EdgeEnds neighbors;  // of the same width
  int64_t num_edges;
};

struct RowsOut {
  AnyIntsOut indptr;  // an entry a row and one more
  AnyIntsOut indices;
  AnyIntsOut edge_ids;
};

struct HotnessHop {
  const double* frontier;  // an entry a row
  int64_t fanout;
  bool replace;
  int64_t edges_at_a_time;
};

// Steps of walks.
struct WalkRequest {
  std::vector<const GraphArrays*> graphs;  // of each edge type
  std::vector<int32_t> relations;          // edge type of each step
  std::vector<uint64_t> stops;             // chance that a walk ends before each step, of 2^32
  WalkBias bias;
  WalkKeys keys;
};

}  // namespace khop::device
