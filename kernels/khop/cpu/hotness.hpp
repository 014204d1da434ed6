// Probability of nodes to be drawn (hotness), hop by hop.
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"

namespace khop::cpu {

// One hop of the hotness recursion: row v is in the frontier with probability frontier[v] and then
// draws each neighbour with probability min(1, fanout / degree). Adds to log_missed[u] the
// logarithm of the probability that v does not draw u. Rows are taken as independent.
template <class Ptr, class Col>
void accumulate_hotness(const CsrView<Ptr, Col>& graph, const double* frontier, int64_t fanout,
                        bool replace, double* log_missed, int64_t num_nodes);

}  // namespace khop::cpu
