// All edges among the nodes of a batch.
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/node_table.hpp"
#include "khop/cpu/rows.hpp"
#include "khop/cpu/stop.hpp"

namespace khop::cpu {

// Edges among the members of a batch, found by one owner: row i contributes counts[i] entries.
struct InducedRows {
  Buffer<int32_t> counts;
  Buffer<int32_t> sources;  // numbers of the members
  Buffer<int64_t> edges;    // empty unless asked for
};

// Scans whole rows (as far as their trees' times see them) for neighbours that are `members` of the
// same tree. Appends to `out`. O(degree) a row. Where trees overlap, a node's row is scanned once
// for all of them: O(degree) a node, and a look-up for each tree of the node or of the neighbour,
// whichever is in fewer. Throws Stopped if `stop` is set.
template <class Ptr, class Col>
void induce_rows(const CsrView<Ptr, Col>& graph, const RowSet& rows, int64_t num_rows,
                 const NodeSet& members, const PairSet* excluded, bool with_edges, InducedRows& out,
                 const StopFlag* stop = nullptr);

}  // namespace khop::cpu
