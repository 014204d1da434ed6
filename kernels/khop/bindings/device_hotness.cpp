// Hotness on a device; errors have the CPU's texts.
#include "khop/bindings/device_arguments.hpp"

namespace khop::bindings {
namespace {

void accumulate_hotness(const PyDevice& self, const AnyArray& indptr, const AnyArray& indices,
                        const DeviceIn<double>& frontier, int64_t fanout, bool replace,
                        const DeviceOut<double>& log_missed) {
  const device::GraphArrays graph = graph_of(self, indptr, indices, 0);
  self.check_place(frontier, "frontier");
  self.check_place(log_missed, "log_missed");
  check_length(entries_of(frontier), graph.num_rows, "frontier");
  device::DeviceError error;
  {
    nb::gil_scoped_release release;
    error = self->accumulate_hotness(graph, {frontier.data(), fanout, replace}, log_missed.data(),
                                     entries_of(log_missed));
  }
  if (error.code == device::DeviceError::kCorruptRow)
    throw std::runtime_error("row pointers are corrupt");
  if (error.code == device::DeviceError::kNoSuchNeighbor) {
    throw std::out_of_range("a neighbour's id is not below the number of nodes");
  }
}

}  // namespace

void bind_device_hotness(nb::class_<PyDevice>& device) {
  device.def("accumulate_hotness", &accumulate_hotness, nb::arg("indptr").noconvert(),
             nb::arg("indices").noconvert(), nb::arg("frontier").noconvert(), nb::arg("fanout"),
             nb::arg("replace"), nb::arg("log_missed").noconvert(),
             R"(As `_native.accumulate_hotness`, on arrays in the device's memory: the same bits.

Each node's terms are added in the order of their rows, by one thread. Takes 32 bytes an edge beside
its arguments. Waits for the check of the graph, not for the sums: see `synchronize`.

Raises:
    IndexError, RuntimeError: the graph has neighbours that are no nodes, or corrupt row pointers;
        nothing is added.)");
}

}  // namespace khop::bindings
