#include <nanobind/stl/string.h>

#include "khop/bindings/module.hpp"
#include "khop/cpu/simd.hpp"

namespace khop::bindings {
namespace {

template <class T>
NumpyArray<double> mapped(void (*map)(const T*, int64_t, double*), const In<T>& values) {
  const auto count = static_cast<int64_t>(values.shape(0));
  cpu::Buffer<double> out(count);
  {
    nb::gil_scoped_release release;
    map(values.data(), count, out.data());
  }
  return to_numpy(std::move(out));
}

const cpu::NormalFunctions& functions(const std::optional<std::string>& instructions) {
  for (const cpu::SimdPicker& picker : cpu::simd_pickers()) {
    if (!instructions || picker.instructions == *instructions) return picker.normal;
  }
  throw nb::value_error(("this machine has no instructions " + *instructions).c_str());
}

using Instructions = std::optional<std::string>;

}  // namespace

void bind_normal(nb::module_& m) {
  m.def(
      "logs",
      [](const In<double>& values, const Instructions& instructions) {
        return mapped(functions(instructions).logs, values);
      },
      nb::arg("values").noconvert(), nb::arg("instructions") = nb::none(),
      "Logarithms of positive float64 that are not subnormal, the same bits on all machines.");
  m.def(
      "normal_variates",
      [](const In<uint64_t>& words, const Instructions& instructions) {
        return mapped(functions(instructions).variates, words);
      },
      nb::arg("words").noconvert(), nb::arg("instructions") = nb::none(),
      "A normal variate for each uint64 word, float64.");
  m.def(
      "normal_cdf",
      [](const In<double>& z, const Instructions& instructions) {
        return mapped(functions(instructions).cdf, z);
      },
      nb::arg("z").noconvert(), nb::arg("instructions") = nb::none(),
      "The chance that a normal variate is below each float64.");
}

}  // namespace khop::bindings
