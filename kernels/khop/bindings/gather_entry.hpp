// Errors of entries of a gather.
#pragma once

#include <string>

#include "khop/bindings/arrays.hpp"
#include "khop/cpu/gather.hpp"

namespace khop::bindings {

// What is wrong with an entry: the row, or if that exists the place where it should go.
[[noreturn]] inline void refuse_entry(int64_t entry, int64_t row, const cpu::RowTable& source,
                                      const cpu::RowTarget& target) {
  const bool has_row = 0 <= row && row < source.num_rows;
  const int64_t place = target.places == nullptr ? entry : target.places[entry];
  throw nb::index_error((std::string(has_row ? "place " : "row ") +
                         std::to_string(has_row ? place : row) + " (entry " +
                         std::to_string(entry) + ") is outside a table of " +
                         std::to_string(has_row ? target.num_rows : source.num_rows) + " rows")
                            .c_str());
}

// Calls copy(rows, count) for each of `rows`, or for all rows of the table without them.
template <class Copy>
void gather_entries(const cpu::RowTable& source, const std::optional<InArray>& rows,
                    const cpu::RowTarget& target, int64_t num_places, int64_t out_bytes,
                    Copy copy) {
  const auto run = [&](auto* row_data, int64_t count) {
    if (count != num_places) {
      throw nb::value_error(("there are " + std::to_string(count) + " rows for " +
                             std::to_string(num_places) + " places")
                                .c_str());
    }
    const ReleaseGil release(count * out_bytes);
    return copy(row_data, count);
  };
  if (!rows.has_value()) {
    const int64_t bad = run(static_cast<const int64_t*>(nullptr), source.num_rows);
    if (bad >= 0) refuse_entry(bad, bad, source, target);
    return;
  }
  visit_ints(*rows, "rows", [&](auto* row_data) {
    const int64_t bad = run(row_data, rows->ndim() == 1 ? length(*rows) : 0);
    if (bad >= 0) {
      refuse_entry(bad, static_cast<int64_t>(row_data[bad]), source, target);
    }
    return 0;
  });
}

}  // namespace khop::bindings
