// khop._native: the compiled core. NumPy arrays in, NumPy arrays out; no libtorch, no CUDA driver.
#include "khop/bindings/module.hpp"

#include <exception>

namespace {

// Standard containers throw with the text 'std::bad_alloc', which names no cause.
void translate_bad_alloc(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const khop::OutOfMemory&) {
    throw;
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, "out of memory in a kernel: use smaller batches or graphs");
  }
}

}  // namespace

NB_MODULE(_native, m) {
  using namespace khop::bindings;
  nb::register_exception_translator(&translate_bad_alloc);
  bind_rng(m);
  bind_csr(m);
  bind_hop_options(m);
  bind_sample(m);
  bind_hotness(m);
  bind_node_table(m);
  bind_subgraph(m);
  bind_subgraph_output(m);
  bind_edges(m);
  bind_negatives(m);
  bind_gather(m);
  bind_encode(m);
  bind_decode(m);
  bind_scatter(m);
  bind_update(m);
  bind_aggregate(m);
  bind_gather_parts(m);
  bind_bus_error(m);
  bind_direct_reads(m);
  bind_write_back_cache(m);
  bind_convert(m);
  bind_edge_split(m);
  bind_owner_split(m);
  bind_lookahead_cache(m);
  bind_cache_model(m);
  bind_weights(m);
  bind_times(m);
  bind_assign(m);
  bind_walk(m);
  bind_smallest(m);
  bind_thresholds(m);
  bind_normal(m);
  bind_device(m);
  bind_device_memory(m);
  bind_device_graph(m);
  bind_device_plan(m);
  bind_device_links(m);
  bind_device_subgraph(m);
  bind_device_row_draw(m);
  bind_device_gather(m);
  bind_cuda(m);
}
