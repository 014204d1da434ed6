// Random walks on a device.
#include <nanobind/stl/shared_ptr.h>

#include <memory>

#include "khop/bindings/device_graph.hpp"
#include "khop/bindings/walk.hpp"

namespace khop::bindings {
namespace {

void random_walks(const std::shared_ptr<PyDevice>& self,
                  const std::vector<const DeviceGraph*>& graphs,
                  const std::vector<int64_t>& relations, const std::vector<uint64_t>& stops,
                  const Chances& bias, uint64_t run_key, uint64_t batch, uint32_t first_step,
                  const In<int64_t>& starts, const Matrix& nodes,
                  const std::optional<Matrix>& edges) {
  device::WalkRequest request{{}, {}, stops, checked_bias(bias), {run_key, batch, first_step}};
  for (const DeviceGraph* graph : graphs) {
    if (graph == nullptr) throw nb::type_error("graphs must hold a DeviceGraph for each edge type");
    if (graph->device()->name() != (*self)->name()) {
      throw nb::value_error("a graph belongs to another device");
    }
    request.graphs.push_back(&graph->arrays_for(self));
  }
  request.relations = checked_relations(relations, graphs.size(), stops.size(), request.bias);
  int64_t* const passed = checked_outputs(starts.shape(0), relations.size(), nodes, edges);
  int64_t bad;
  {
    nb::gil_scoped_release release;
    bad = (*self)->random_walks(request, starts.data(), static_cast<int64_t>(starts.shape(0)),
                                nodes.data(), passed);
  }
  if (bad >= 0) {
    throw std::runtime_error("the graph is damaged: walk " + std::to_string(bad) +
                             " comes to a node that has no row, or a corrupt one");
  }
}

}  // namespace

void bind_device_walk(nb::class_<PyDevice>& device) {
  device.def(
      "random_walks", &random_walks, nb::arg("graphs"), nb::arg("relations"), nb::arg("stops"),
      nb::arg("bias"), nb::arg("run_key"), nb::arg("batch"), nb::arg("first_step"),
      nb::arg("starts").noconvert(), nb::arg("nodes").noconvert(),
      nb::arg("edges").noconvert().none(),
      R"(As `_native.random_walks`, over graphs on the device; all arrays are the host's. Waits.

A thread walks a whole walk. With a bias it reads the row of the node before for each question, and
where no trial succeeds the one for each entry of the other: hubs that are joined take long.

Raises:
    RuntimeError: a walk comes to a node without a row; or a CUDA call failed.)");
}

}  // namespace khop::bindings
