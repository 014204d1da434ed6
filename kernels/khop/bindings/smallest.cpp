#include "khop/cpu/smallest.hpp"

#include "khop/bindings/checks.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

template <class T>
NumpyArray<int64_t> smallest_of(const InArray& values, const In<int64_t>& counts,
                                const In<int64_t>& most, bool ascending) {
  const cpu::RowValues<T> rows{static_cast<const T*>(values.data()), counts.data(), most.data(),
                               static_cast<int64_t>(counts.shape(0))};
  cpu::Buffer<int64_t> entries(cpu::num_smallest(rows));
  {
    nb::gil_scoped_release release;
    cpu::smallest_entries(rows, ascending, entries.data());
  }
  return to_numpy(std::move(entries));
}

NumpyArray<int64_t> smallest_entries(const InArray& values, const In<int64_t>& counts,
                                     const In<int64_t>& most, bool ascending) {
  if (values.ndim() != 1) throw nb::value_error("values must have one dimension");
  check_length(length(values), checked_total(counts), "values");
  check_length(static_cast<int64_t>(most.shape(0)), static_cast<int64_t>(counts.shape(0)), "most");
  if (is_type<double>(values)) return smallest_of<double>(values, counts, most, ascending);
  if (is_type<int64_t>(values)) return smallest_of<int64_t>(values, counts, most, ascending);
  if (is_type<uint64_t>(values)) return smallest_of<uint64_t>(values, counts, most, ascending);
  throw nb::type_error("values must be float64, int64 or uint64");
}

}  // namespace

void bind_smallest(nb::module_& m) {
  m.def("smallest_entries", &smallest_entries, nb::arg("values").noconvert(),
        nb::arg("counts").noconvert(), nb::arg("most").noconvert(), nb::arg("ascending") = false,
        R"(Entries of smallest value in each row, [m] int64, row by row.

Args:
    values: [n] float64, int64 or uint64, row by row. Of equal values the first entry is smaller.
    counts: [num_rows] int64 entries of each row. The sum is n.
    most: [num_rows] int64: a row gives min(count, most) entries.
    ascending: in order of entries. If False, the smallest value first.)");
}

}  // namespace khop::bindings
