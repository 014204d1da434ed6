#include "khop/cpu/weights.hpp"

#include <cstdio>

#include "khop/bindings/indptr.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

std::string as_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

void check(const cpu::BadWeight& bad) {
  const std::string row = "row " + std::to_string(bad.row);
  switch (bad.kind) {
    case cpu::BadWeight::Kind::kNone:
      return;
    case cpu::BadWeight::Kind::kWeight:
      throw nb::value_error((row + " holds weight " + as_text(bad.value) + " (entry " +
                             std::to_string(bad.edge) +
                             "): weights must be finite and not negative")
                                .c_str());
    case cpu::BadWeight::Kind::kSum:
      throw nb::value_error(
          (row + ": its weights add up to more than a double holds; scale them down").c_str());
    case cpu::BadWeight::Kind::kTooLong:
      throw nb::value_error((row + " has more than 2^32 - 1 weights").c_str());
    case cpu::BadWeight::Kind::kRow:
      throw_corrupt();
  }
}

template <class Ptr, class Weight>
nb::tuple weight_table_typed(const Ptr* indptr, int64_t num_rows, const InArray& weights) {
  const int64_t num_edges = length(weights);
  cpu::Buffer<uint64_t> sums(num_edges);
  cpu::Buffer<uint32_t> guide(num_edges);
  cpu::BadWeight bad;
  {
    nb::gil_scoped_release release;
    bad = cpu::build_weight_table(indptr, num_rows, static_cast<const Weight*>(weights.data()),
                                  num_edges, sums.data(), guide.data());
  }
  check(bad);
  return nb::make_tuple(to_numpy(std::move(sums)), to_numpy(std::move(guide)));
}

nb::tuple weight_table(const InArray& indptr, const InArray& weights) {
  if (weights.ndim() != 1) throw nb::value_error("weights must have one dimension");
  return visit_indptr(indptr, length(weights), "weights", [&](auto* data, int64_t num_rows) {
    if (is_type<float>(weights)) {
      return weight_table_typed<std::remove_const_t<std::remove_pointer_t<decltype(data)>>, float>(
          data, num_rows, weights);
    }
    if (is_type<double>(weights)) {
      return weight_table_typed<std::remove_const_t<std::remove_pointer_t<decltype(data)>>, double>(
          data, num_rows, weights);
    }
    throw nb::type_error("weights must be float32 or float64");
  });
}

}  // namespace

void bind_weights(nb::module_& m) {
  m.def("weight_table", &weight_table, nb::arg("indptr"), nb::arg("weights"),
        R"(What draws by weight need: cumulative integer weights of each row, and a guide into them.

Indexed search (Chen & Asau 1974); built in one pass.

Args:
    indptr: [num_rows + 1] int32 or int64, row pointers.
    weights: [num_edges] float32 or float64, finite and not negative.

Returns:
    (weight_sums [num_edges] uint64, weight_guide [num_edges] uint32). A row whose weights are all
    zero has sums of 0.

Raises:
    ValueError: a negative, infinite or NaN weight, or a row's sum that is infinite (names row and
        value); arrays that do not belong together.
    TypeError: another dtype.)");
}

}  // namespace khop::bindings
