#include "khop/bindings/device_plan.hpp"

#include <nanobind/stl/shared_ptr.h>

#include <map>

#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

device::Program visits(int64_t num_walks, int64_t length, uint64_t stop) {
  if (num_walks < 1 || length < 1) throw nb::value_error("there must be walks of a step or more");
  if (stop > uint64_t{1} << 32) throw nb::value_error("stop must be at most 2^32");
  device::Program program;
  program.method = device::Program::kVisits;
  program.num_walks = num_walks;
  program.length = length;
  program.stop = stop;
  return program;
}

device::Program layers(const std::string& method, std::vector<int64_t> counts, bool skips,
                       bool scales_rows, uintptr_t column_sums, int64_t num_sums) {
  using Method = device::Program::Method;
  const std::map<std::string, Method> methods = {{"poisson-ladies", Method::kPoisson},
                                                 {"ladies", Method::kProportional},
                                                 {"fastgcn", Method::kWholeGraph}};
  const auto found = methods.find(method);
  if (found == methods.end()) throw nb::value_error("no device draws layers by this method");
  for (const int64_t count : counts) {
    if (count < 1) throw nb::value_error("counts must be at least 1");
  }
  device::Program program;
  program.method = found->second;
  program.counts = std::move(counts);
  program.skips = skips;
  program.scales_rows = scales_rows;
  const bool of_graph = program.method == Method::kWholeGraph;
  if (of_graph == (column_sums == 0) || (of_graph && skips)) {
    throw nb::value_error("'fastgcn' alone has column_sums, and does not skip");
  }
  program.column_sums = reinterpret_cast<const int64_t*>(column_sums);
  program.num_sums = num_sums;
  return program;
}

}  // namespace

void bind_device_plan(nb::module_& m) {
  nb::class_<device::Program>(m, "DeviceProgram",
                              "A method that draws for all rows of a hop together, on a device.")
      .def_static("visits", &visits, nb::arg("num_walks"), nb::arg("length"), nb::arg("stop"),
                  R"(Joins rows to the nodes that walks visit most: PinSAGE.

The fan-out of a hop is the number of nodes. `stop` is the chance that a walk ends before a step but
the first, of 2^32. Values of edges are numbers of visits.)")
      .def_static("layers", &layers, nb::arg("method"), nb::arg("counts"), nb::arg("skips"),
                  nb::arg("scales_rows"), nb::arg("column_sums") = 0, nb::arg("num_sums") = 0,
                  R"(Draws the nodes of layers by importance, for all rows together.

Args:
    method: 'poisson-ladies', 'ladies' or 'fastgcn'.
    counts: nodes of each layer.
    skips: rows are always drawn. Not of 'fastgcn'.
    scales_rows: a row's values add up to the number of its edges.
    column_sums, num_sums: of 'fastgcn', address of running sums of importance over all nodes,
        int64 in the device's memory, and their number.)");
  nb::class_<PyDevicePlan>(m, "DevicePlan",
                           R"(What all batches of a sampler on a device have in common.

Args:
    device, graphs, hops, cuda_graph: as of `DeviceSubgraph` and its `sample`.
    names: as of `DeviceSubgraph.write`.
    named: for each edge type, whether batches have the names of edges.
    backward: exchange rows and columns.
    layer_wise: all nodes draw in each hop, not only those that the hop before has found.
    program: a method that draws edges with values, from a graph of one node and edge type.
    padding: (nodes, edges, leaves_room, disjoint) of batches that `draw` pads: sizes of the sections
        of each node type (seeds, then hops) and edge type (hops), whether a section must not be
        full, and whether batches are disjoint.

Raises:
    IndexError: there are fewer names than edges.
    ValueError: arguments for another number of edge types, or graphs of another device. Malformed
        padding. A program with padding or `cuda_graph`.)")
      .def(nb::init<SharedDevice, nb::list, HopTable, bool, const Names&, const std::vector<bool>&,
                    bool, const std::optional<Padding>&, const std::optional<device::Program>&,
                    bool>(),
           nb::arg("device"), nb::arg("graphs"), nb::arg("hops"), nb::arg("cuda_graph"),
           nb::arg("names"), nb::arg("named"), nb::arg("backward") = false,
           nb::arg("padding").none() = nb::none(), nb::arg("program").none() = nb::none(),
           nb::arg("layer_wise") = false)
      .def_prop_ro(
          "lengths", &PyDevicePlan::lengths,
          "Entries of each array of a padded batch's block; empty: batches are not padded.")
      .def_prop_ro("block_words", &PyDevicePlan::block_words,
                   "Entries that a block for the next batch should have; 0: not known yet.");
}

}  // namespace khop::bindings
