#include "khop/cpu/thresholds.hpp"

#include <algorithm>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

using MaybeIn = std::optional<In<double>>;

const double* checked_values(const MaybeIn& values, int64_t num_entries, const char* name) {
  if (!values) return nullptr;
  check_length(static_cast<int64_t>(values->shape(0)), num_entries, name);
  return values->data();
}

cpu::MassRows checked_masses(const MaybeIn& masses, const MaybeIn& shares,
                             const In<int64_t>& counts, const In<int64_t>& asked) {
  const auto num_rows = static_cast<int64_t>(counts.shape(0));
  const int64_t num_entries = checked_total(counts);
  check_length(static_cast<int64_t>(asked.shape(0)), num_rows, "asked");
  if (shares && !masses) throw nb::value_error("rows with shares have masses");
  return {checked_values(masses, num_entries, "masses"),
          checked_values(shares, num_entries, "shares"), counts.data(), asked.data(), num_rows};
}

NumpyArray<double> row_scales(const MaybeIn& masses, const MaybeIn& shares,
                              const In<int64_t>& counts, const In<int64_t>& asked) {
  const cpu::MassRows rows = checked_masses(masses, shares, counts, asked);
  cpu::Buffer<double> scales(rows.num_rows);
  {
    nb::gil_scoped_release release;
    cpu::row_scales(rows, scales.data());
  }
  return to_numpy(std::move(scales));
}

NumpyArray<double> row_chances(const MaybeIn& masses, const MaybeIn& shares,
                               const In<int64_t>& counts, const In<int64_t>& asked) {
  const cpu::MassRows rows = checked_masses(masses, shares, counts, asked);
  cpu::Buffer<double> chances(checked_total(counts));
  {
    nb::gil_scoped_release release;
    cpu::row_chances(rows, chances.data());
  }
  return to_numpy(std::move(chances));
}

NumpyArray<double> common_chances(const In<int64_t>& masses, int64_t count) {
  if (count < 1) throw nb::value_error("count must be at least 1");
  const auto n = static_cast<int64_t>(masses.shape(0));
  int64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (masses.data()[i] < 1 || __builtin_add_overflow(sum, masses.data()[i], &sum)) {
      throw nb::value_error("masses must be above 0, and their sum below 2^63");
    }
  }
  cpu::Buffer<double> chances(n);
  {
    nb::gil_scoped_release release;
    if (n <= count) {
      std::fill_n(chances.data(), n, 1.0);
    } else {
      cpu::common_chances(masses.data(), n, count, chances.data());
    }
  }
  return to_numpy(std::move(chances));
}

}  // namespace

void bind_thresholds(nb::module_& m) {
  m.def("row_scales", &row_scales, nb::arg("masses").noconvert().none(),
        nb::arg("shares").noconvert().none(), nb::arg("counts").noconvert(),
        nb::arg("asked").noconvert(),
        R"(Factors c_s of LABOR's chances min(1, c_s mass), [num_rows] float64.

Args:
    masses: [n] float64 above 0, row by row. If None, all are 1.
    shares: [n] float64 weights, scaled so that each row's sum is 1. If None, all weights are equal.
    counts: [num_rows] int64 entries of each row. The sum is n.
    asked: [num_rows] int64 entries that each row takes. Negative: all.)");
  m.def("row_chances", &row_chances, nb::arg("masses").noconvert().none(),
        nb::arg("shares").noconvert().none(), nb::arg("counts").noconvert(),
        nb::arg("asked").noconvert(),
        "LABOR's chances min(1, c_s mass), [n] float64; 1 in rows that take all. See row_scales.");
  m.def("common_chances", &common_chances, nb::arg("masses").noconvert(), nb::arg("count"),
        "Chances min(1, c * mass), [n] float64, where c makes their sum `count`; 1 if n <= count.");
}

}  // namespace khop::bindings
