#include "khop/cpu/edges.hpp"

#include "khop/bindings/csr.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

NumpyArray<bool> has_edges_of(const Csr& graph, const In<int64_t>& rows,
                              const In<int64_t>& neighbors) {
  const auto count = static_cast<int64_t>(rows.shape(0));
  if (static_cast<int64_t>(neighbors.shape(0)) != count) {
    throw nb::value_error(("there are " + std::to_string(count) + " rows, but " +
                           std::to_string(neighbors.shape(0)) + " neighbors")
                              .c_str());
  }
  cpu::Buffer<bool> exists(count);
  {
    nb::gil_scoped_release release;
    graph.visit([&](const auto& view) {
      cpu::has_edges(view, rows.data(), neighbors.data(), count, exists.data());
    });
  }
  return to_numpy(std::move(exists));
}

NumpyArray<int64_t> degrees_of(const Csr& graph, const In<int64_t>& rows) {
  const auto count = static_cast<int64_t>(rows.shape(0));
  cpu::Buffer<int64_t> degrees(count);
  {
    nb::gil_scoped_release release;
    graph.visit([&](const auto& view) { cpu::degrees(view, rows.data(), count, degrees.data()); });
  }
  return to_numpy(std::move(degrees));
}

}  // namespace

void bind_edges(nb::module_& m) {
  m.def("has_edges", &has_edges_of, nb::arg("graph"), nb::arg("rows").noconvert(),
        nb::arg("neighbors").noconvert(),
        "Whether node rows[i], whose neighbours `graph` holds, has the neighbour neighbors[i].");
  m.def("degrees", &degrees_of, nb::arg("graph"), nb::arg("rows").noconvert(),
        "How many neighbours each node has, all of which `graph` holds.");
}

}  // namespace khop::bindings
