// Operations of a backend, called with the types that their arrays have.
#pragma once

#include <cstdint>

#include "khop/device/graph.hpp"
#include "khop/device/operations.hpp"
#include "khop/device/steps/hotness.hpp"

namespace khop::device::operations {

template <class F>
void visit(const AnyIntsOut& out, F&& f) {
  if (out.data == nullptr) return;
  if (out.width == 4) {
    f(static_cast<int32_t*>(out.data));
  } else {
    f(static_cast<int64_t*>(out.data));
  }
}

template <class Id>
IdColumn<Id> column(const EdgeEnds& ends) {
  return {static_cast<const Id*>(ends.ids.data), ends.map, ends.num_ids};
}

template <class Id, class Backend>
EdgeListError coo_to_csr_of(Backend& backend, const CooEdges& list, const RowsOut& out) {
  EdgeListRows<Backend, Id> rows(backend, column<Id>(list.keys), column<Id>(list.neighbors),
                                 list.num_edges, list.keys.num_nodes, list.neighbors.num_nodes);
  const EdgeListError error = rows.sort();
  if (error.kind != EdgeListError::kNone) return error;
  visit(out.indptr, [&](auto* indptr) { rows.write_indptr(indptr); });
  visit(out.indices, [&](auto* indices) { rows.write_indices(indices); });
  visit(out.edge_ids, [&](auto* edge_ids) { rows.write_edge_ids(edge_ids); });
  return error;
}

template <class Backend>
EdgeListError coo_to_csr(Backend& backend, const CooEdges& list, const RowsOut& out) {
  return list.keys.ids.width == 4 ? coo_to_csr_of<int32_t>(backend, list, out)
                                  : coo_to_csr_of<int64_t>(backend, list, out);
}

template <class Backend>
DeviceError accumulate_hotness(Backend& backend, const GraphArrays& graph, const HotnessHop& hop,
                               double* log_missed, int64_t num_nodes) {
  return graph.visit([&](const auto& view) {
    return device::accumulate_hotness(backend, view, hop.frontier, hop.fanout, hop.replace,
                                      hop.edges_at_a_time, log_missed, num_nodes);
  });
}

inline int64_t longest_row(const GraphArrays& graph) {
  return graph.max_degree > 0 ? graph.max_degree : graph.num_edges;  // 0: not known
}

}  // namespace khop::device::operations
