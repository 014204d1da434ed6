// Draws neighbours, hop by hop.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/core/csr.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/edge_list.hpp"
#include "khop/cpu/node_table.hpp"
#include "khop/cpu/rows.hpp"

namespace khop::cpu {

// Neighbours of some rows: row i contributes counts[i] consecutive entries.
template <class Col>
struct DrawnRows {
  Buffer<int32_t> counts;
  Buffer<Col> neighbors;
  Buffer<int64_t> edges;  // empty unless asked for
};

// Draws the neighbours of `rows`, all of which must be rows of `graph`.
// Throws std::out_of_range if one is not, std::runtime_error if the row pointers are corrupt.
template <class Ptr, class Col>
void sample_rows(const CsrView<Ptr, Col>& graph, const RowSet& rows, int64_t num_rows,
                 const HopSpec& spec, DrawnRows<Col>& out);

// Draws as `sample_rows` from row pointers alone: neighbours and other columns are not read.
// `edges` has the drawn positions, and there are no neighbours. Throws std::invalid_argument for
// draws that need columns: by time, by weight, by LABOR, or around excluded edges.
template <class Ptr, class Col>
void pick_positions(const CsrView<Ptr, Col>& graph, const RowSet& rows, int64_t num_rows,
                    const HopSpec& spec, DrawnRows<Col>& out);

// Draws one hop and numbers what it finds: samples the frontier, adds its neighbours to `sources`
// (which may be the frontier's own set) and appends the edges to `out`.
template <class Ptr, class Col>
void sample_hop(const CsrView<Ptr, Col>& graph, const Frontier& frontier, const HopSpec& spec,
                NodeSet& sources, EdgeList& out);

// The same from the rows of parts, in the order of their rows, which together hold all. The result
// is that of the whole graph.
template <class Ptr, class Col>
void sample_hop(const std::vector<CsrView<Ptr, Col>>& parts, const Frontier& frontier,
                const HopSpec& spec, NodeSet& sources, EdgeList& out);

}  // namespace khop::cpu
