#include "khop/cpu/times.hpp"

#include <limits>

#include "khop/bindings/indptr.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

template <class Place, class Ptr>
nb::object order_of(const Ptr* indptr, int64_t num_rows, const In<int64_t>& times) {
  cpu::Buffer<Place> order(static_cast<int64_t>(times.shape(0)));
  {
    nb::gil_scoped_release release;
    cpu::order_by_time(indptr, num_rows, times.data(), order.data());
  }
  return nb::cast(to_numpy(std::move(order)));
}

int64_t first_disordered(const InArray& indptr, const In<int64_t>& times) {
  const auto num_edges = static_cast<int64_t>(times.shape(0));
  return visit_indptr(indptr, num_edges, "times", [&](auto* data, int64_t num_rows) {
    int64_t row;
    {
      nb::gil_scoped_release release;
      row = cpu::first_row_out_of_order(data, num_rows, times.data(), num_edges);
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

void bind_times(nb::module_& m) {
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
