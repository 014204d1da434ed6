// Membership of edges on a device; errors have the CPU's texts.
#include "khop/bindings/device_arguments.hpp"
#include "khop/cpu/row_errors.hpp"

namespace khop::bindings {
namespace {

[[noreturn]] void throw_bad_row(const PyDevice& self, const device::GraphArrays& graph,
                                int64_t node) {
  if (node < graph.first_row || node - graph.first_row >= graph.num_rows) {
    cpu::throw_no_such_row(node, graph.first_row, graph.num_rows);
  }
  const int64_t row = node - graph.first_row;
  cpu::throw_corrupt_row(row, read_int(self, graph.indptr, graph.indptr_width, row),
                         read_int(self, graph.indptr, graph.indptr_width, row + 1),
                         graph.num_edges);
}

void has_edges(const PyDevice& self, const AnyArray& indptr, const AnyArray& indices,
               const DeviceIn<int64_t>& rows, const DeviceIn<int64_t>& neighbors,
               const DeviceOut<bool>& exists, int64_t first_row) {
  const device::GraphArrays graph = graph_of(self, indptr, indices, first_row);
  self.check_place(rows, "rows");
  self.check_place(neighbors, "neighbors");
  self.check_place(exists, "exists");
  const int64_t count = entries_of(rows);
  if (entries_of(neighbors) != count || entries_of(exists) != count) {
    throw nb::value_error(("there are " + std::to_string(count) + " rows, but " +
                           std::to_string(entries_of(neighbors)) + " neighbors and room for " +
                           std::to_string(entries_of(exists)) + " answers")
                              .c_str());
  }
  int64_t bad;
  {
    nb::gil_scoped_release release;
    bad = self->has_edges(graph, rows.data(), neighbors.data(), count, exists.data());
  }
  if (bad >= 0) throw_bad_row(self, graph, read_int(self, rows.data(), 8, bad));
}

}  // namespace

void bind_device_edges(nb::class_<PyDevice>& device) {
  device.def("has_edges", &has_edges, nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
             nb::arg("rows").noconvert(), nb::arg("neighbors").noconvert(),
             nb::arg("exists").noconvert(), nb::arg("first_row") = 0,
             R"(exists[i] = whether node rows[i], of row rows[i] - first_row, has neighbors[i].

Args:
    indptr, indices: int32 or int64, compressed rows in the device's memory.
    rows, neighbors: [count] int64.
    exists: [count] bool, written.

Raises:
    IndexError: a node has no row (names the first such node).
    RuntimeError: a row that is asked for is corrupt, or a CUDA call failed.)");
}

}  // namespace khop::bindings
