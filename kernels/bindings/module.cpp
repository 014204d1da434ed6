// khop._native: the compiled core. NumPy arrays in, NumPy arrays out; no libtorch, no CUDA driver.
#include "graph.hpp"

NB_MODULE(_native, m) {
  using namespace khop::bindings;
  bind_rng(m);
  bind_graph(m);
  bind_sample(m);
  bind_subgraph(m);
  bind_output(m);
  bind_links(m);
  bind_gather(m);
  bind_floor(m);
  bind_bus_error(m);
  bind_convert(m);
  bind_partition(m);
  bind_weights(m);
  bind_device(m);
  bind_device_memory(m);
  bind_device_subgraph(m);
  bind_device_table(m);
  bind_cuda(m);
}
