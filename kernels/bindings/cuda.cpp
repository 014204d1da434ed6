#include "graph.hpp"

#ifdef KHOP_WITH_CUDA
#include <nanobind/stl/string.h>

#include "../cuda/device.hpp"
#endif

namespace khop::bindings {
namespace {

// What `khop doctor` reports; a machine without a driver gets an error text, never a crash.
nb::dict cuda_status() {
  nb::dict status;
#ifdef KHOP_WITH_CUDA
  const cuda::DeviceStatus found = cuda::device_status();
  status["compiled"] = true;
  status["runtime"] = found.runtime_version;
  status["driver"] = found.driver_version;
  status["devices"] = found.num_devices;
  status["error"] = found.error;
#else
  status["compiled"] = false;
#endif
  return status;
}

}  // namespace

void bind_cuda(nb::module_& m) {
  m.def("cuda_status", &cuda_status,
        "Whether CUDA was compiled in, the versions, and how many devices can be used.");
}

}  // namespace khop::bindings
