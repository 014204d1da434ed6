// All edges among the nodes of a batch, an item each edge of its nodes.
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"
#include "khop/device/steps/candidates.hpp"

namespace khop::device {

// Edges of a batch's end, by number.
struct EdgeArrays {
  int32_t* sources;
  int32_t* destinations;
  int64_t* edges;  // null: not wanted
  const float* values = nullptr;
};

struct MemberEdges {
  DeviceCsr graph;
  FrontierView rows;
  Candidates candidates;
  ExcludedList excluded;
  SampleBuffer members;
  const TypeState* state;

  // Where the neighbour stands in the buffer, or -1 if it is none of the batch's nodes.
  KHOP_HD int64_t find(int64_t c) const {
    const int64_t i = candidates.row_of(c);
    const int64_t edge = candidates.edge_of(i, c);
    const int64_t id = graph.indices[edge];
    if (id < 0 || id >= members.num_ids) return -1;
    if (excluded.contains(edge)) return -1;
    const int64_t key = members.key(rows.tree_of(rows.keys[i]), id);
    return members.table.find(key, state->stamp);
  }
  KHOP_HD int64_t operator()(int64_t c) const { return find(c) >= 0 ? 1 : 0; }
};

struct WriteMemberEdges {
  MemberEdges found;
  const int64_t* ranks;
  EdgeArrays out;

  KHOP_HD void operator()(int64_t c) const {
    const int64_t place = ranks[c];
    if (ranks[c + 1] == place) return;
    const int64_t i = found.candidates.row_of(c);
    out.sources[place] = found.members.numbers[found.find(c)];
    out.destinations[place] = static_cast<int32_t>(i);
    if (out.edges != nullptr) {
      out.edges[place] = found.graph.first_edge + found.candidates.edge_of(i, c);
    }
  }
};

}  // namespace khop::device
