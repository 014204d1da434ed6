// Writes a drawn batch to the arrays that users get: int64, by node and edge type.
#pragma once

#include <cstdint>

#include "khop/parallel/backend.hpp"

namespace khop::parallel {

struct WriteNodes {
  const int64_t* keys;
  int id_bits;
  bool disjoint;
  int64_t* ids;    // may be null
  int64_t* trees;  // may be null

  KHOP_HD void operator()(int64_t i) const {
    const auto key = static_cast<uint64_t>(keys[i]);
    const uint64_t mask = (uint64_t{1} << id_bits) - 1;
    if (ids != nullptr) ids[i] = static_cast<int64_t>(disjoint ? key & mask : key);
    if (trees != nullptr) trees[i] = disjoint ? static_cast<int64_t>(key >> id_bits) : 0;
  }
};

struct WriteEnds {
  const int32_t* sources;
  const int32_t* destinations;
  int64_t* row;
  int64_t* col;
  KHOP_HD void operator()(int64_t j) const {
    row[j] = sources[j];
    col[j] = destinations[j];
  }
};

// The names of edges, by their positions in the graph.
template <class Name>
struct WriteNames {
  const int64_t* edges;
  const Name* names;  // null: an edge's position is its name
  int64_t num_names;
  int64_t* out;
  Fault* fault;

  KHOP_HD void operator()(int64_t j) const {
    if (names == nullptr) {
      out[j] = edges[j];
    } else if (edges[j] < num_names) {
      out[j] = names[edges[j]];
    } else {
      fault->report(Fault::kNoSuchEntry, edges[j]);
    }
  }
};

}  // namespace khop::parallel
