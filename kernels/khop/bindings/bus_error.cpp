#include "khop/cpu/bus_error.hpp"

#include <nanobind/stl/string.h>

#include "khop/bindings/module.hpp"

namespace khop::bindings {

void bind_bus_error(nb::module_& m) {
  m.def("explain_bus_error", &cpu::explain_bus_error, nb::arg("text"),
        R"(Writes `text` to stderr when a bus error (SIGBUS) occurs: a mapped file was cut off.

What happens then is what would have happened without, so the exit status stays, and handlers that
were installed before (faulthandler's) are called.)");
}

}  // namespace khop::bindings
