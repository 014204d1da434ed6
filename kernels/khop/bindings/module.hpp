// Functions that add each file's bindings to the module.
#pragma once

#include "khop/bindings/arrays.hpp"

namespace khop::bindings {

void bind_rng(nb::module_& m);
void bind_csr(nb::module_& m);
void bind_hop_options(nb::module_& m);
void bind_sample(nb::module_& m);
void bind_hotness(nb::module_& m);
void bind_node_table(nb::module_& m);
void bind_subgraph(nb::module_& m);
void bind_subgraph_output(nb::module_& m);
void bind_edges(nb::module_& m);
void bind_negatives(nb::module_& m);
void bind_gather(nb::module_& m);
void bind_encode(nb::module_& m);
void bind_decode(nb::module_& m);
void bind_scatter(nb::module_& m);
void bind_update(nb::module_& m);
void bind_aggregate(nb::module_& m);
void bind_gather_parts(nb::module_& m);
void bind_bus_error(nb::module_& m);
void bind_direct_reads(nb::module_& m);
void bind_write_back_cache(nb::module_& m);
void bind_convert(nb::module_& m);
void bind_edge_split(nb::module_& m);
void bind_owner_split(nb::module_& m);
void bind_cache_model(nb::module_& m);
void bind_lookahead_cache(nb::module_& m);
void bind_weights(nb::module_& m);
void bind_times(nb::module_& m);
void bind_assign(nb::module_& m);
void bind_walk(nb::module_& m);
void bind_smallest(nb::module_& m);
void bind_thresholds(nb::module_& m);
void bind_normal(nb::module_& m);
void bind_device(nb::module_& m);
void bind_device_memory(nb::module_& m);
void bind_device_graph(nb::module_& m);
void bind_device_plan(nb::module_& m);
void bind_device_links(nb::module_& m);
void bind_device_subgraph(nb::module_& m);
void bind_device_row_draw(nb::module_& m);
void bind_device_gather(nb::module_& m);
void bind_cuda(nb::module_& m);

}  // namespace khop::bindings
