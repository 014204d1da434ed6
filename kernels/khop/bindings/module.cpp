// khop._native: the compiled core. NumPy arrays in, NumPy arrays out; no libtorch, no CUDA driver.
#include <exception>

#include "khop/bindings/csr.hpp"

namespace {

// What containers throw says 'std::bad_alloc', which tells nobody anything.
void say_out_of_memory(const std::exception_ptr& thrown, void*) {
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
  nb::register_exception_translator(&say_out_of_memory);
  bind_rng(m);
  bind_graph(m);
  bind_hop_options(m);
  bind_sample(m);
  bind_subgraph(m);
  bind_output(m);
  bind_links(m);
  bind_gather(m);
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
