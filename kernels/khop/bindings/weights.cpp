#include "khop/cpu/weights.hpp"

#include <cstdio>
#include <limits>

#include "khop/bindings/csr.hpp"
#include "khop/cpu/times.hpp"

namespace khop::bindings {
namespace {

// The row pointers of `num_edges` entries: begin and end are right, the rest is up to the kernels.
template <class F>
decltype(auto) visit_indptr(const InArray& indptr, int64_t num_edges, const char* what, F&& f) {
  return visit_ints(indptr, "indptr", [&](auto* data) -> decltype(auto) {
    const int64_t num_rows = length(indptr) - 1;
    if (num_rows < 0) throw nb::value_error("indptr must hold at least one entry");
    if (data[0] != 0) throw nb::value_error("indptr must begin with 0");
    if (static_cast<int64_t>(data[num_rows]) != num_edges) {
      throw nb::value_error(("indptr ends with " + std::to_string(data[num_rows]) +
                             " but there are " + std::to_string(num_edges) + " " + what)
                                .c_str());
    }
    return f(data, num_rows);
  });
}

[[noreturn]] void throw_corrupt() { throw nb::value_error("indptr must not decrease"); }

std::string as_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

void check(const BadWeight& bad) {
  const std::string row = "row " + std::to_string(bad.row);
  switch (bad.kind) {
    case BadWeight::Kind::kNone:
      return;
    case BadWeight::Kind::kWeight:
      throw nb::value_error((row + " holds weight " + as_text(bad.value) + " (entry " +
                             std::to_string(bad.edge) +
                             "): weights must be finite and not negative")
                                .c_str());
    case BadWeight::Kind::kSum:
      throw nb::value_error(
          (row + ": its weights add up to more than a double holds; scale them down").c_str());
    case BadWeight::Kind::kTooLong:
      throw nb::value_error((row + " has more than 2^32 - 1 weights").c_str());
    case BadWeight::Kind::kRow:
      throw_corrupt();
  }
}

template <class Ptr, class Weight>
nb::tuple weight_table_typed(const Ptr* indptr, int64_t num_rows, const InArray& weights) {
  const int64_t num_edges = length(weights);
  Buffer<uint64_t> sums(num_edges);
  Buffer<uint32_t> guide(num_edges);
  BadWeight bad;
  {
    nb::gil_scoped_release release;
    bad = build_weight_table(indptr, num_rows, static_cast<const Weight*>(weights.data()),
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

template <class Place, class Ptr>
nb::object order_of(const Ptr* indptr, int64_t num_rows, const In<int64_t>& times) {
  Buffer<Place> order(static_cast<int64_t>(times.shape(0)));
  {
    nb::gil_scoped_release release;
    order_by_time(indptr, num_rows, times.data(), order.data());
  }
  return nb::cast(to_numpy(std::move(order)));
}

int64_t first_disordered(const InArray& indptr, const In<int64_t>& times) {
  const auto num_edges = static_cast<int64_t>(times.shape(0));
  return visit_indptr(indptr, num_edges, "times", [&](auto* data, int64_t num_rows) {
    int64_t row;
    {
      nb::gil_scoped_release release;
      row = first_row_out_of_order(data, num_rows, times.data(), num_edges);
    }
    if (row < 0) throw_corrupt();
    return row == num_rows ? -1 : row;
  });
}

nb::object sort_rows_by_time(const InArray& indptr, const In<int64_t>& times) {
  if (first_disordered(indptr, times) < 0) return nb::none();
  return visit_ints(indptr, "indptr", [&](auto* data) {
    const int64_t num_rows = length(indptr) - 1;
    constexpr std::size_t kNarrow = std::numeric_limits<int32_t>::max();
    return times.shape(0) > kNarrow ? order_of<int64_t>(data, num_rows, times)
                                    : order_of<int32_t>(data, num_rows, times);
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
  m.def("sort_rows_by_time", &sort_rows_by_time, nb::arg("indptr"), nb::arg("times").noconvert(),
        R"(The order that puts the entries of each row into ascending time; equal times keep theirs.

Args:
    indptr: [num_rows + 1] int32 or int64, row pointers.
    times: [num_edges] int64.

Returns:
    [num_edges] the entry that comes to stand at each place, in the narrowest of int32 and int64
    that fits; None if every row is in order already.)");
  m.def("first_row_out_of_order", &first_disordered, nb::arg("indptr"),
        nb::arg("times").noconvert(),
        "First row in which a time is followed by an earlier one, or -1; arguments as of "
        "`sort_rows_by_time`.");
}

}  // namespace khop::bindings
