#include "khop/bindings/csr.hpp"

#include <nanobind/stl/pair.h>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

// An optional array with an entry an edge.
template <class T>
void check_edge_array(const std::optional<InArray>& array, const char* name, const char* dtype,
                      int64_t num_edges) {
  if (!array.has_value()) return;
  if (!is_type<T>(*array)) {
    throw nb::type_error((std::string(name) + " must be " + dtype).c_str());
  }
  if (array->ndim() != 1 || length(*array) != num_edges) {
    throw nb::value_error((std::string(name) + " must hold an entry for each of the " +
                           std::to_string(num_edges) + " edges")
                              .c_str());
  }
}

}  // namespace

Csr::Csr(InArray indptr, InArray indices, std::optional<InArray> row_ids, int64_t first_row,
         int64_t first_edge, std::optional<InArray> times, std::optional<InArray> weight_sums,
         std::optional<InArray> weight_guide, std::optional<InArray> neighbor_ids)
    : indptr_(std::move(indptr)),
      indices_(std::move(indices)),
      row_ids_(std::move(row_ids)),
      times_(std::move(times)),
      weight_sums_(std::move(weight_sums)),
      weight_guide_(std::move(weight_guide)),
      neighbor_ids_(std::move(neighbor_ids)),
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
  if (neighbor_ids_.has_value()) {
    visit_ints(*neighbor_ids_, "neighbor_ids", [&](auto* data) {
      neighbor_ids_data_ = data;
      neighbor_id_width_ = sizeof(*data);
      return 0;
    });
    if (length(*neighbor_ids_) != num_edges_) {
      throw nb::value_error(("neighbor_ids must hold an id for each of the " +
                             std::to_string(num_edges_) + " edges, but holds " +
                             std::to_string(length(*neighbor_ids_)))
                                .c_str());
    }
  }
  check_edge_array<int64_t>(times_, "times", "int64", num_edges_);
  check_edge_array<uint64_t>(weight_sums_, "weight_sums", "uint64", num_edges_);
  check_edge_array<uint32_t>(weight_guide_, "weight_guide", "uint32", num_edges_);
  if (weight_sums_.has_value() != weight_guide_.has_value()) {
    throw nb::value_error("weight_sums and weight_guide belong together: give both or neither");
  }
  check_first(first_row, num_rows_, "first_row");
  check_first(first_edge, num_edges_, "first_edge");
}

const InArray& Csr::array_at(const void* data) const {
  for (const auto* array : {&row_ids_, &times_, &weight_sums_, &weight_guide_, &neighbor_ids_}) {
    if (array->has_value() && (*array)->data() == data) return **array;
  }
  return data == indptr_.data() ? indptr_ : indices_;
}

DeviceCsr Csr::any_view() const {
  return visit([](const auto& view) {
    return DeviceCsr{AnyInts{view.indptr, sizeof(*view.indptr)},
                     AnyInts{view.indices, sizeof(*view.indices)},
                     view.row_ids,
                     view.row_id_width,
                     view.num_rows,
                     view.num_edges,
                     view.first_row,
                     view.first_edge,
                     view.times,
                     view.weight_sums,
                     view.weight_guide,
                     view.neighbor_ids,
                     view.neighbor_id_width};
  });
}

const cpu::RowTables& Csr::row_tables() const {
  const std::lock_guard<std::mutex> lock(making_tables_);
  if (row_tables_ == nullptr) row_tables_ = std::make_unique<cpu::RowTables>(any_view());
  return *row_tables_;
}

void bind_csr(nb::module_& m) {
  nb::class_<Csr>(m, "Csr", R"(Compressed rows: the graph that kernels sample from.

Holds references to the arrays (NumPy or anything with DLPack, memory-mapped or not), copies none.

Args:
    indptr: [num_rows + 1] int32 or int64, row pointers.
    indices: [num_edges] int32 or int64, neighbour ids.
    row_ids: [num_rows] int32 or int64, original ids that key the draws; None: first_row + row.
    first_row: id of the node whose neighbours row 0 holds.
    first_edge: number of the first edge in the whole graph.
    times: [num_edges] int64 time of each edge, ascending within each row; None: no times.
    weight_sums, weight_guide: [num_edges] uint64 and uint32, from `weight_table`; None: no weights.
    neighbor_ids: [num_edges] int32 or int64, original ids of the neighbours, for methods that key
        draws by them; None: unknown if there are `row_ids`, else those in `indices`.)")
      .def(nb::init<InArray, InArray, std::optional<InArray>, int64_t, int64_t,
                    std::optional<InArray>, std::optional<InArray>, std::optional<InArray>,
                    std::optional<InArray>>(),
           nb::arg("indptr"), nb::arg("indices"), nb::arg("row_ids").none() = nb::none(),
           nb::arg("first_row") = 0, nb::arg("first_edge") = 0,
           nb::arg("times").none() = nb::none(), nb::arg("weight_sums").none() = nb::none(),
           nb::arg("weight_guide").none() = nb::none(), nb::arg("neighbor_ids").none() = nb::none())
      .def_prop_ro("num_rows", &Csr::num_rows)
      .def_prop_ro("num_edges", &Csr::num_edges)
      .def_prop_ro("has_times", &Csr::has_times)
      .def_prop_ro("has_weights", &Csr::has_weights)
      .def_prop_ro("knows_neighbors", &Csr::knows_neighbors,
                   "True if original ids of neighbours are known.")
      .def_prop_ro("widths", &Csr::widths, "Bytes of a row pointer, and of a neighbour.")
      .def_prop_ro("wide", &Csr::has_wide_columns, "True if neighbour ids are int64.");
}

}  // namespace khop::bindings
