#include "khop/cpu/hotness.hpp"

#include "khop/bindings/checks.hpp"
#include "khop/bindings/csr.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

void add_hotness(const Csr& graph, const In<double>& frontier, int64_t fanout, bool replace,
                 const Out<double>& log_missed) {
  check_length(static_cast<int64_t>(frontier.shape(0)), graph.num_rows(), "frontier");
  nb::gil_scoped_release release;
  graph.visit([&](const auto& view) {
    cpu::accumulate_hotness(view, frontier.data(), fanout, replace, log_missed.data(),
                            static_cast<int64_t>(log_missed.shape(0)));
  });
}

}  // namespace

void bind_hotness(nb::module_& m) {
  m.def("accumulate_hotness", &add_hotness, nb::arg("graph"), nb::arg("frontier").noconvert(),
        nb::arg("fanout"), nb::arg("replace"), nb::arg("log_missed").noconvert(),
        "Adds to log_missed[u] the log-probability that no row of the frontier draws u.");
}

}  // namespace khop::bindings
