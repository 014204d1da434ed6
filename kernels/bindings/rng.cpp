#include "khop/rng.hpp"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "graph.hpp"
#include "khop/pick.hpp"
#include "shuffle.hpp"

namespace khop::bindings {
namespace {

NumpyArray<int64_t> permutation_of(int64_t count, uint64_t key) {
  if (count < 0) throw nb::value_error("count must not be negative");
  Buffer<int64_t> order(count);
  {
    nb::gil_scoped_release release;
    permutation(key, count, order.data());
  }
  return to_numpy(std::move(order));
}

}  // namespace

void bind_rng(nb::module_& m) {
  m.def(
      "philox",
      [](uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
        const Philox4x32 out = philox(key, c0, c1, c2, c3);
        return std::make_tuple(out.word[0], out.word[1], out.word[2], out.word[3]);
      },
      nb::arg("key"), nb::arg("c0"), nb::arg("c1"), nb::arg("c2"), nb::arg("c3"),
      "Philox4x32-10: four 32-bit words.");
  m.def("run_key", &run_key, nb::arg("seed"), nb::arg("epoch"), nb::arg("stream"),
        "Key of one epoch of one trainer.");
  m.def("step_key", &step_key, nb::arg("run"), nb::arg("batch"), nb::arg("hop"),
        nb::arg("edge_type"), "Key of one hop over one edge type in one batch.");
  m.def("permutation", &permutation_of, nb::arg("count"), nb::arg("key"),
        "A permutation of 0 .. count - 1 that depends on the key alone.");
  m.attr("SHUFFLE_HOP") = kShuffleHop;
}

}  // namespace khop::bindings
