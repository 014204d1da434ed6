#include "graph.hpp"

namespace khop::bindings {

Csr::Csr(InArray indptr, InArray indices, std::optional<InArray> row_ids, int64_t first_row,
         int64_t first_edge)
    : indptr_(std::move(indptr)),
      indices_(std::move(indices)),
      row_ids_(std::move(row_ids)),
      first_row_(first_row),
      first_edge_(first_edge) {
  const int64_t last = visit_ints(indptr_, "indptr", [&](auto* data) {
    if (length(indptr_) < 1) throw nb::value_error("indptr must hold at least one entry");
    if (data[0] != 0) throw nb::value_error("indptr must begin with 0");
    return static_cast<int64_t>(data[length(indptr_) - 1]);
  });
  visit_ints(indices_, "indices", [](auto*) { return 0; });
  num_rows_ = length(indptr_) - 1;
  num_edges_ = length(indices_);
  if (last != num_edges_) {
    throw nb::value_error(("indptr ends with " + std::to_string(last) + " but there are " +
                           std::to_string(num_edges_) + " indices")
                              .c_str());
  }
  if (row_ids_.has_value()) {
    visit_ints(*row_ids_, "row_ids", [&](auto* data) {
      row_ids_data_ = data;
      row_id_width_ = sizeof(*data);
      return 0;
    });
    if (length(*row_ids_) != num_rows_) {
      throw nb::value_error(("row_ids must hold an id for each of the " +
                             std::to_string(num_rows_) + " rows, but holds " +
                             std::to_string(length(*row_ids_)))
                                .c_str());
    }
  }
  if (first_row < 0 || first_edge < 0) {
    throw nb::value_error("first_row and first_edge must not be negative");
  }
}

void bind_graph(nb::module_& m) {
  nb::class_<Csr>(m, "Csr", R"(Compressed rows: the graph that kernels sample from.

Holds references to the arrays (NumPy or anything with DLPack, memory-mapped or not), copies none.

Args:
    indptr: [num_rows + 1] int32 or int64, row pointers.
    indices: [num_edges] int32 or int64, neighbour ids.
    row_ids: [num_rows] int32 or int64, original ids that key the draws; None: first_row + row.
    first_row: id of the node whose neighbours row 0 holds.
    first_edge: number of the first edge in the whole graph.)")
      .def(nb::init<InArray, InArray, std::optional<InArray>, int64_t, int64_t>(),
           nb::arg("indptr"), nb::arg("indices"), nb::arg("row_ids").none() = nb::none(),
           nb::arg("first_row") = 0, nb::arg("first_edge") = 0)
      .def_prop_ro("num_rows", &Csr::num_rows)
      .def_prop_ro("num_edges", &Csr::num_edges)
      .def_prop_ro("wide", &Csr::has_wide_columns, "True if neighbour ids are int64.");
}

}  // namespace khop::bindings
