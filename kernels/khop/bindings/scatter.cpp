#include "khop/cpu/scatter.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <type_traits>

#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

cpu::Reduce reduce_of(const std::string& name) {
  if (name == "set") return cpu::Reduce::kSet;
  if (name == "add") return cpu::Reduce::kAdd;
  if (name == "min") return cpu::Reduce::kMin;
  if (name == "max") return cpu::Reduce::kMax;
  throw nb::value_error("reduce must be 'set', 'add', 'min' or 'max'");
}

// Calls f with a typed pointer to the table's values, or returns false for other dtypes.
template <class F>
bool visit_values(const OutArray& table, bool bfloat16, F&& f) {
  const auto visit = [&](auto value) {
    using Value = decltype(value);
    if (!is_type<Value>(table)) return false;
    f(static_cast<Value*>(table.data()));
    return true;
  };
  if (bfloat16) {
    if (!is_type<uint16_t>(table)) return false;
    f(static_cast<cpu::Bfloat16*>(table.data()));
    return true;
  }
  if (table.dtype() == nb::dlpack::dtype{uint8_t(nb::dlpack::dtype_code::Float), 16, 1}) {
    f(static_cast<cpu::Float16*>(table.data()));
    return true;
  }
  return visit(float{}) || visit(double{}) || visit(int64_t{}) || visit(int32_t{}) ||
         visit(bool{}) || visit(int8_t{}) || visit(uint8_t{}) || visit(int16_t{}) ||
         visit(uint16_t{}) || visit(uint32_t{}) || visit(uint64_t{});
}

void scatter(const OutArray& table, const In<int64_t>& rows, const InArray& values,
             const std::string& reduce, bool bfloat16) {
  if (table.ndim() < 1 || values.ndim() < 1) {
    throw nb::value_error("table and values need a row axis");
  }
  const auto count = static_cast<int64_t>(rows.shape(0));
  if (length(values) != count) {
    throw nb::value_error(
        (std::to_string(length(values)) + " rows of values for " + std::to_string(count) + " rows")
            .c_str());
  }
  if (values.dtype() != table.dtype() || row_bytes_of(values) != row_bytes_of(table)) {
    throw nb::type_error("values and table must have the same dtype and row shape");
  }
  const int64_t bad = cpu::first_outside(rows.data(), count, length(table));
  if (bad >= 0) {
    throw nb::index_error(("row " + std::to_string(rows.data()[bad]) + " (entry " +
                           std::to_string(bad) + ") is outside a table of " +
                           std::to_string(length(table)) + " rows")
                              .c_str());
  }
  const cpu::Reduce how = reduce_of(reduce);
  const int64_t row_bytes = row_bytes_of(table);
  const bool is_known = visit_values(table, bfloat16, [&](auto* data) {
    using Value = std::remove_pointer_t<decltype(data)>;
    const ReleaseGil release(count * row_bytes);
    cpu::scatter_rows(data, row_bytes / static_cast<int64_t>(sizeof(Value)), rows.data(), count,
                      static_cast<const Value*>(values.data()), how);
  });
  if (!is_known) throw nb::type_error("scatter does not know this dtype");
}

}  // namespace

void bind_scatter(nb::module_& m) {
  m.def("scatter", &scatter, nb::arg("table").noconvert(), nb::arg("rows").noconvert(),
        nb::arg("values").noconvert(), nb::arg("reduce"), nb::arg("bfloat16") = false,
        R"(table[rows[i]] = reduce(table[rows[i]], values[i]) for each i, in order.

A row may occur several times. Integers wrap around. min and max return NaN if a value is NaN.

Args:
    table: [num_rows, ...], changed in place.
    rows: [n] int64.
    values: [n, ...] of the table's dtype and row shape.
    reduce: 'set', 'add', 'min' or 'max'.
    bfloat16: values are bfloat16, stored as uint16.

Raises:
    IndexError: a row does not exist; nothing is written.
    TypeError: a dtype or row shape that does not fit.)");
}

}  // namespace khop::bindings
