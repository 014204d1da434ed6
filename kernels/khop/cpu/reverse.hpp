// Drawn edges with their reverses.
#pragma once

#include "khop/cpu/edge_list.hpp"

namespace khop::cpu {

// Adds to each edge (u, v) of `own` its reverse and to it the reverses of `reversed`, which may be
// the same list; then sorts by destination and source and keeps the first of equal pairs. With
// `reversed` another list, edges lose their ids.
void add_reverses(const EdgeList& own, const EdgeList& reversed, bool with_edges, EdgeList& out);

}  // namespace khop::cpu
