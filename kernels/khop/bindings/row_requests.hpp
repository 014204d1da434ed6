// What the pieces of one request for rows share: made once, however many pieces there are.
#pragma once

#include "khop/bindings/arrays.hpp"
#include "khop/cpu/exclude.hpp"
#include "khop/cpu/node_table.hpp"

namespace khop::bindings {

// Edges that are not to be drawn.
struct ExcludedPairs {
  cpu::PairSet pairs;
};

// Nodes of a batch, by their keys.
struct Members {
  Members(int64_t num_nodes, bool has_trees) : set(num_nodes, has_trees), disjoint(has_trees) {
    // Keys come from elsewhere: whatever they are, they are told apart in full.
    if (disjoint) set.set_num_trees(set.max_trees());
  }
  cpu::NodeSet set;
  bool disjoint;
};

}  // namespace khop::bindings
