#include "khop/cpu/aggregate.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutFloats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

cpu::Aggregate aggregate_of(const std::string& name) {
  if (name == "sum") return cpu::Aggregate::kSum;
  if (name == "min") return cpu::Aggregate::kMin;
  if (name == "max") return cpu::Aggregate::kMax;
  throw nb::value_error("reduce must be 'sum', 'min' or 'max'");
}

void aggregate(const In<int64_t>& first, const InArray& neighbors,
               const std::optional<In<float>>& weights, const std::vector<Floats>& parts,
               const std::string& reduce, const OutFloats& out) {
  const cpu::Aggregate how = aggregate_of(reduce);
  const auto num_rows = static_cast<int64_t>(first.shape(0)) - 1;
  const int64_t count = length(neighbors);
  const bool ascends = num_rows >= 0 && first.data()[0] == 0 && first.data()[num_rows] == count &&
                       std::is_sorted(first.data(), first.data() + num_rows + 1);
  if (!ascends) throw nb::value_error("first must ascend from 0 to the number of neighbors");
  if (weights) check_length(static_cast<int64_t>(weights->shape(0)), count, "weights");
  check_length(static_cast<int64_t>(out.shape(0)), num_rows, "out");
  if (parts.empty()) throw nb::value_error("there must be a part");
  const auto width = static_cast<int64_t>(out.shape(1));
  cpu::PartTables table{{}, {0}, width * int64_t{sizeof(float)}};
  for (const Floats& part : parts) {
    check_length(static_cast<int64_t>(part.shape(1)), width, "rows of values");
    table.parts.push_back(reinterpret_cast<const char*>(part.data()));
    table.firsts.push_back(table.firsts.back() + static_cast<int64_t>(part.shape(0)));
  }
  const int64_t num_values = table.firsts.back();
  visit_ints(neighbors, "neighbors", [&](auto* ids) {
    for (int64_t i = 0; i < count; ++i) {
      if (static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(num_values)) {
        throw nb::index_error(("neighbour " + std::to_string(ids[i]) + " is outside of " +
                               std::to_string(num_values) + " rows")
                                  .c_str());
      }
    }
    const ReleaseGil release(count * width * int64_t{sizeof(float)});
    using Index = std::remove_const_t<std::remove_pointer_t<decltype(ids)>>;
    cpu::aggregate_rows(
        cpu::WeightedRows<Index>{first.data(), num_rows, ids, weights ? weights->data() : nullptr},
        table, how, out.data());
    return 0;
  });
}

}  // namespace

void bind_aggregate(nb::module_& m) {
  m.def(
      "aggregate", &aggregate, nb::arg("first").noconvert(), nb::arg("neighbors").noconvert(),
      nb::arg("weights").none().noconvert(), nb::arg("values").noconvert(), nb::arg("reduce"),
      nb::arg("out").noconvert(),
      R"(out[i] = the sum of weights[e] * row neighbors[e] of values for e from first[i] to first[i + 1].

Args:
    first: [n + 1] int64, the first entry of each row.
    neighbors: [m] int32 or int64 rows of values.
    weights: [m] float32; None: all are 1.
    values: parts of a table, one after the other: arrays of [num_rows, width] float32.
    reduce: 'sum', or 'min' or 'max' of the products, column by column.
    out: [n, width] float32. Rows without entries get zeros.

Raises:
    IndexError: a neighbour does not exist; nothing is written.)");
}

}  // namespace khop::bindings
