#include "khop/cpu/gather.hpp"

#include "khop/bindings/gather_entry.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

void gather(const InArray& table, const std::optional<InArray>& rows, const OutArray& out,
            const std::optional<In<int64_t>>& places, int num_threads) {
  if (table.ndim() < 1 || out.ndim() < 1) throw nb::value_error("table and out need a row axis");
  const bool widened =
      table.ndim() == 1 && out.ndim() == 1 && is_type<int32_t>(table) && is_type<int64_t>(out);
  if (!widened && row_bytes_of(table) != row_bytes_of(out)) {
    throw nb::value_error(("rows of table have " + std::to_string(row_bytes_of(table)) +
                           " bytes but rows of out " + std::to_string(row_bytes_of(out)))
                              .c_str());
  }
  const cpu::RowTable source{static_cast<const char*>(table.data()), length(table),
                             row_bytes_of(table)};
  const cpu::RowTarget target{static_cast<char*>(out.data()), length(out),
                              places ? places->data() : nullptr};
  const int64_t wanted = places ? static_cast<int64_t>(places->shape(0)) : length(out);
  gather_entries(
      source, rows, target, wanted, row_bytes_of(out), [&](auto* row_data, int64_t count) {
        return widened ? cpu::gather_widened(source, row_data, count, target, num_threads)
                       : cpu::gather_rows(source, row_data, count, target, num_threads);
      });
}

}  // namespace

void bind_gather(nb::module_& m) {
  m.def("gather", &gather, nb::arg("table"), nb::arg("rows").none(), nb::arg("out").noconvert(),
        nb::arg("places").noconvert().none() = nb::none(), nb::arg("num_threads") = 1,
        R"(out[i] = table[rows[i]], or out[places[i]] = table[rows[i]].

Tables may have any dtype and any number of axes; only the bytes of a row count. A table of int32
with one axis may also go to int64.

Args:
    table: the rows.
    rows: [n] int32 or int64; None: all rows, in order.
    out: what is filled; n rows, or as many as places need.
    places: [n] where each row goes; default: one after the other.
    num_threads: threads to use where the copy is long enough to pay for them.

Raises:
    IndexError: a row or place does not exist; out is then partly written.)");
}

}  // namespace khop::bindings
