#include "khop/bindings/module.hpp"

#ifdef KHOP_WITH_CUDA
#include <nanobind/stl/string.h>

#include "khop/cuda/gpu.hpp"
#endif

namespace khop::bindings {
namespace {

// What `khop doctor` reports; a machine without a driver gets an error text, never a crash.
nb::dict cuda_status() {
  nb::dict status;
#ifdef KHOP_WITH_CUDA
  const cuda::DeviceStatus found = cuda::device_status();
  status["compiled"] = true;
  status["lowest_capability"] =
      nb::make_tuple(found.lowest_capability / 10, found.lowest_capability % 10);
  status["runtime"] = found.runtime_version;
  status["driver"] = found.driver_version;
  status["devices"] = found.num_devices;
  nb::list gpus;
  for (const cuda::Gpu& gpu : found.gpus) {
    nb::dict about;
    about["name"] = gpu.name;
    about["capability"] = nb::make_tuple(gpu.major, gpu.minor);
    about["memory"] = gpu.memory;
    about["multiprocessors"] = gpu.multiprocessors;
    about["registers_read_only"] = gpu.registers_read_only;
    gpus.append(about);
  }
  status["gpus"] = gpus;
  status["error"] = found.error;
#else
  status["compiled"] = false;
#endif
  return status;
}

}  // namespace

void bind_cuda(nb::module_& m) {
  m.def("cuda_status", &cuda_status,
        R"(What CUDA this build and this machine have. Never raises.

Returns:
    `compiled`: whether CUDA was compiled in. If it was, also `runtime` and `driver`, versions
    (13000 is 13.0; 0: no driver), `lowest_capability` (major, minor) of GPUs that it was built for
    ((0, 0): not known), `devices`, the number of GPUs that can be used, `error`, why none
    can (or ''), and `gpus`, a dict for each: `name`, `capability` (major, minor), `memory` in
    bytes, `multiprocessors`, `registers_read_only` (whether files mapped read-only can be
    registered with it).)");
}

}  // namespace khop::bindings
