#include "khop/bindings/hop_options.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

constexpr std::pair<const char*, HopMethod> kMethods[] = {
    {"neighbor", HopMethod::kNeighbor},
    {"labor", HopMethod::kLabor},
};

HopMethod method_of(const std::string& name) {
  for (const auto& [known, method] : kMethods) {
    if (name == known) return method;
  }
  throw nb::value_error(("no such sampling method '" + name.substr(0, 100) + "'").c_str());
}

std::string name_of(HopMethod wanted) {
  for (const auto& [name, method] : kMethods) {
    if (method == wanted) return name;
  }
  return "";
}

}  // namespace

void bind_hop_options(nb::module_& m) {
  nb::class_<HopOptions>(m, "HopOptions", R"(How one hop over one edge type is drawn.

Args:
    fanout: neighbours a row; below 0: all.
    replace: draw with replacement.
    with_edge: record which edges were drawn.
    key: of the hop's draws, 64 bits; see `at`.
    weighted: draw by the graph's weights.
    last: the latest neighbours instead of random ones.
    method: 'neighbor' or 'labor'.
    layer_dependency: of 'labor': all hops share the numbers that decide.

Raises:
    ValueError: there is no such method, or it knows no such option.)")
      .def(
          "__init__",
          [](HopOptions* self, int64_t fanout, bool replace, bool with_edge, uint64_t key,
             bool weighted, bool last, const std::string& method, bool layer_dependency) {
            if (method == "labor" && (replace || last)) {
              throw nb::value_error("LABOR draws without replacement, and never the latest alone");
            }
            new (self) HopOptions{fanout,   key,  method_of(method), replace, with_edge,
                                  weighted, last, layer_dependency};
          },
          nb::arg("fanout"), nb::arg("replace") = false, nb::arg("with_edge") = true,
          nb::arg("key") = 0, nb::arg("weighted") = false, nb::arg("last") = false,
          nb::arg("method") = "neighbor", nb::arg("layer_dependency") = false)
      .def_ro("fanout", &HopOptions::fanout)
      .def_ro("replace", &HopOptions::replace)
      .def_ro("with_edge", &HopOptions::with_edge)
      .def_ro("key", &HopOptions::key)
      .def_ro("weighted", &HopOptions::weighted)
      .def_ro("last", &HopOptions::last)
      .def_ro("layer_dependency", &HopOptions::layer_dependency)
      .def_prop_ro("method", [](const HopOptions& self) { return name_of(self.method); })
      .def(
          "at",
          [](const HopOptions& self, uint64_t run, uint64_t batch, uint32_t hop, uint32_t relation,
             uint32_t source) { return self.at({run, batch, hop, relation, source}); },
          nb::arg("run"), nb::arg("batch"), nb::arg("hop"), nb::arg("relation"), nb::arg("source"),
          "The same with the key of a hop over an edge type, to neighbours of node type `source`.");
}

}  // namespace khop::bindings
