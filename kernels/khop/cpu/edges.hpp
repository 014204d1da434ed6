// Membership of edges: whether a node has a neighbour.
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"

namespace khop::cpu {

// exists[i] = whether row `rows[i]` (the id of a node whose neighbours `graph` holds) has the
// neighbour `neighbors[i]`. A row is read up to the edge that is looked for; a long row of which
// much is asked is read once for all of it. Throws std::out_of_range for a node without a row,
// std::runtime_error for corrupt row pointers.
template <class Ptr, class Col>
void has_edges(const CsrView<Ptr, Col>& graph, const int64_t* rows, const int64_t* neighbors,
               int64_t count, bool* exists);

// degrees[i] = how many neighbours row `rows[i]` has. Throws as has_edges.
template <class Ptr, class Col>
void degrees(const CsrView<Ptr, Col>& graph, const int64_t* rows, int64_t count, int64_t* degrees);

}  // namespace khop::cpu
