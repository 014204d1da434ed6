// _khop_floor: the floor of benchmarks. Built on request (KHOP_BENCHMARKS), and part of no wheel.
#include "floor/floor.hpp"
#include "khop/bindings/arrays.hpp"

namespace khop::floor {
namespace {

using namespace bindings;

// The floor of one graph; keeps its buffers from batch to batch, as samplers do.
class GraphFloor {
 public:
  GraphFloor(InArray indptr, InArray indices)
      : indptr_(std::move(indptr)), indices_(std::move(indices)) {
    visit_ints(indptr_, "indptr", [](auto*) {});
    visit_ints(indices_, "indices", [](auto*) {});
    if (length(indptr_) < 1) throw nb::value_error("indptr must hold at least one entry");
  }

  uint64_t touch(const In<int64_t>& rows, const In<int32_t>& counts, const In<int64_t>& edges,
                 int64_t num_nodes) {
    if (rows.shape(0) != counts.shape(0)) throw nb::value_error("a count is needed for each row");
    if (num_nodes < 0) throw nb::value_error("num_nodes must not be negative");
    const DrawnBatch batch{rows.data(),
                           counts.data(),
                           static_cast<int64_t>(rows.shape(0)),
                           edges.data(),
                           static_cast<int64_t>(edges.shape(0)),
                           num_nodes};
    return visit_ints(indptr_, "indptr", [&](auto* indptr) {
      return visit_ints(indices_, "indices", [&](auto* indices) {
        const FloorRows graph{indptr, indices, length(indptr_) - 1, length(indices_)};
        nb::gil_scoped_release release;
        return floor_.touch(graph, batch);
      });
    });
  }

 private:
  InArray indptr_;
  InArray indices_;
  SampleFloor floor_;
};

uint64_t gather_floor(const InArray& table, const InArray& rows, const OutArray& out) {
  if (table.ndim() < 1 || out.ndim() < 1 || row_bytes_of(table) != row_bytes_of(out) ||
      length(rows) != length(out)) {
    throw nb::value_error("out must hold a row of the table for each entry of rows");
  }
  const cpu::RowTable source{static_cast<const char*>(table.data()), length(table),
                             row_bytes_of(table)};
  return visit_ints(rows, "rows", [&](auto* row_data) {
    nb::gil_scoped_release release;
    return touch_rows(source, row_data, length(rows), static_cast<char*>(out.data()));
  });
}

}  // namespace
}  // namespace khop::floor

NB_MODULE(_khop_floor, m) {
  using namespace khop::floor;
  using namespace khop::bindings;
  nb::class_<GraphFloor>(m, "SampleFloor", R"(The least that sampling a graph can cost.

Touches what a batch that was drawn before touches, in the same order and fetched ahead: the row
pointers, the drawn columns, a slot an edge of a table of the batch's size, and the outputs.)")
      .def(nb::init<InArray, InArray>(), nb::arg("indptr").noconvert(),
           nb::arg("indices").noconvert())
      .def("touch", &GraphFloor::touch, nb::arg("rows").noconvert(), nb::arg("counts").noconvert(),
           nb::arg("edges").noconvert(), nb::arg("num_nodes"),
           R"(Touches a batch: counts[i] edges of rows[i], at positions `edges` of `indices`.

Returns:
    A sum of what was read.

Raises:
    IndexError: the graph has no such row or edge.)");
  m.def("gather_floor", &gather_floor, nb::arg("table"), nb::arg("rows"),
        nb::arg("out").noconvert(),
        R"(Touches each line that gathering `rows` of a table into `out` reads or writes.

Returns:
    A sum of what was read.

Raises:
    IndexError: the table has no such row.)");
}
