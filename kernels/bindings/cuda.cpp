#include "graph.hpp"

#ifdef KHOP_WITH_CUDA
#include <nanobind/stl/string.h>

#include "../cuda/gather.hpp"
#include "device.hpp"
#endif

namespace khop::bindings {
namespace {

#ifdef KHOP_WITH_CUDA
using DeviceArray = nb::ndarray<nb::c_contig, nb::device::cuda>;

void gather_on_device(const DeviceArray& table, const DeviceArray& rows, const DeviceArray& out,
                      uintptr_t stream) {
  if (table.ndim() < 1 || out.ndim() < 1 || rows.ndim() != 1) {
    throw nb::value_error("table and out need a row axis, rows exactly one axis");
  }
  if (row_bytes_of(table) != row_bytes_of(out) || rows.shape(0) != out.shape(0)) {
    throw nb::value_error("out must have a row of the table's width for each of rows");
  }
  visit_ints(rows, "rows", [&](auto* data) {
    int64_t bad;
    {
      nb::gil_scoped_release release;
      bad = cuda::gather_rows(table.data(), static_cast<int64_t>(table.shape(0)),
                              row_bytes_of(table), data, static_cast<int64_t>(rows.shape(0)),
                              out.data(), reinterpret_cast<void*>(stream));
    }
    if (bad >= 0) {
      throw nb::index_error(("entry " + std::to_string(bad) + " of rows is outside a table of " +
                             std::to_string(table.shape(0)) + " rows")
                                .c_str());
    }
    return 0;
  });
}
#endif

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
#ifdef KHOP_WITH_CUDA
  m.def("gather_on_device", &gather_on_device, nb::arg("table"), nb::arg("rows"), nb::arg("out"),
        nb::arg("stream") = 0,
        R"(out[i] = table[rows[i]] for CUDA arrays (anything with DLPack), on a CUDA stream.

Raises:
    IndexError: a row does not exist; the other rows are written.
    RuntimeError: a CUDA call failed; names the call.)");
#endif
}

}  // namespace khop::bindings
