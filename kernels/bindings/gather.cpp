#include "gather.hpp"

#include "graph.hpp"

namespace khop::bindings {
namespace {

void gather(const InArray& table, const InArray& rows, const OutArray& out,
            const std::optional<In<int64_t>>& places, int num_threads) {
  if (table.ndim() < 1 || out.ndim() < 1) throw nb::value_error("table and out need a row axis");
  if (row_bytes_of(table) != row_bytes_of(out)) {
    throw nb::value_error(("rows of table have " + std::to_string(row_bytes_of(table)) +
                           " bytes but rows of out " + std::to_string(row_bytes_of(out)))
                              .c_str());
  }
  const int64_t count = rows.ndim() == 1 ? length(rows) : 0;
  const int64_t wanted = places ? static_cast<int64_t>(places->shape(0)) : length(out);
  if (count != wanted) {
    throw nb::value_error(
        ("there are " + std::to_string(count) + " rows for " + std::to_string(wanted) + " places")
            .c_str());
  }
  const RowTable source{static_cast<const char*>(table.data()), length(table), row_bytes_of(table)};
  const int64_t* place_data = places ? places->data() : nullptr;
  visit_ints(rows, "rows", [&](auto* row_data) {
    int64_t bad;
    {
      const ReleaseGil release(count * source.row_bytes);
      bad = gather_rows(source, row_data, count, place_data, static_cast<char*>(out.data()),
                        length(out), num_threads);
    }
    if (bad >= 0) {
      throw nb::index_error(("row " + std::to_string(static_cast<int64_t>(row_data[bad])) +
                             " (entry " + std::to_string(bad) + ") is outside a table of " +
                             std::to_string(source.num_rows) + " rows, or its place outside " +
                             std::to_string(length(out)))
                                .c_str());
    }
    return 0;
  });
}

}  // namespace

void bind_gather(nb::module_& m) {
  m.def("gather", &gather, nb::arg("table"), nb::arg("rows"), nb::arg("out").noconvert(),
        nb::arg("places").noconvert().none() = nb::none(), nb::arg("num_threads") = 1,
        R"(out[i] = table[rows[i]], or out[places[i]] = table[rows[i]].

Tables may have any dtype and any number of axes; only the bytes of a row count.

Raises:
    IndexError: a row or place does not exist; out is then partly written.)");
}

}  // namespace khop::bindings
