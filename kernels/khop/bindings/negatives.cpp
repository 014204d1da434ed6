#include "khop/core/negatives.hpp"

#include "khop/bindings/checks.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

void check_count(int64_t count) {
  if (count < 0) throw nb::value_error("count must not be negative");
  check_draws(count);
}

NumpyArray<int64_t> draw_ids_of(uint64_t key, int64_t bound, int64_t count) {
  check_count(count);
  if (bound < (count == 0 ? 0 : 1)) throw nb::value_error("bound must be positive");
  cpu::Buffer<int64_t> drawn(count);
  {
    nb::gil_scoped_release release;
    draw_below(key, count, [bound](int64_t) { return bound; }, drawn.data());
  }
  return to_numpy(std::move(drawn));
}

NumpyArray<int64_t> draw_below_of(uint64_t key, const In<int64_t>& bounds) {
  const auto count = static_cast<int64_t>(bounds.shape(0));
  check_count(count);
  const int64_t* data = bounds.data();
  for (int64_t i = 0; i < count; ++i) {
    if (data[i] < 0) throw nb::value_error("bounds must not be negative");
  }
  cpu::Buffer<int64_t> drawn(count);
  {
    nb::gil_scoped_release release;
    draw_below(key, count, [data](int64_t i) { return data[i]; }, drawn.data());
  }
  return to_numpy(std::move(drawn));
}

}  // namespace

void bind_negatives(nb::module_& m) {
  m.attr("NEGATIVE_HOP") = kNegativeHop;
  m.def("draw_ids", &draw_ids_of, nb::arg("key"), nb::arg("bound"), nb::arg("count"),
        "Numbers in [0, bound): number i is 64-bit word i under `key` times bound, shifted by 64.");
  m.def("draw_below", &draw_below_of, nb::arg("key"), nb::arg("bounds").noconvert(),
        "As draw_ids, number i in [0, bounds[i]); 0 where the bound is 0.");
}

}  // namespace khop::bindings
