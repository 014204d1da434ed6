#include "khop/cpu/gather_parts.hpp"

#include <nanobind/stl/vector.h>

#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

void gather_parts(const std::vector<InArray>& parts, const In<int64_t>& rows, const OutArray& out) {
  if (out.ndim() < 1 || length(out) != static_cast<int64_t>(rows.shape(0))) {
    throw nb::value_error("out needs a row for each entry of rows");
  }
  if (parts.empty()) throw nb::value_error("there must be a part");
  const bool widened = out.ndim() == 1 && is_type<int64_t>(out) && parts[0].ndim() == 1 &&
                       is_type<int32_t>(parts[0]);
  cpu::PartTables table{{}, {0}, widened ? row_bytes_of(parts[0]) : row_bytes_of(out)};
  for (const InArray& part : parts) {
    if (part.ndim() < 1 || row_bytes_of(part) != table.row_bytes ||
        (widened && !is_type<int32_t>(part))) {
      throw nb::value_error("rows of all parts and of out must have the same bytes");
    }
    table.parts.push_back(static_cast<const char*>(part.data()));
    table.firsts.push_back(table.firsts.back() + length(part));
  }
  int64_t bad;
  {
    const ReleaseGil release(length(out) * table.row_bytes);
    const auto gather = widened ? &cpu::gather_parts_widened : &cpu::gather_parts;
    bad = gather(table, rows.data(), length(out), static_cast<char*>(out.data()));
  }
  if (bad >= 0) {
    throw nb::index_error(("row " + std::to_string(rows.data()[bad]) + " (entry " +
                           std::to_string(bad) + ") is outside a table of " +
                           std::to_string(table.firsts.back()) + " rows")
                              .c_str());
  }
}

}  // namespace

void bind_gather_parts(nb::module_& m) {
  m.def("gather_parts", &gather_parts, nb::arg("parts"), nb::arg("rows").noconvert(),
        nb::arg("out").noconvert(),
        R"(out[i] = row rows[i] of the parts, one after the other.

Args:
    parts: arrays with rows of the same bytes. Of int32 with one axis, out may be int64.
    rows: [n] int64.
    out: what is filled, n rows.

Raises:
    IndexError: a row does not exist; out is then partly written.)");
}

}  // namespace khop::bindings
