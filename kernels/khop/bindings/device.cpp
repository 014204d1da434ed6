#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "khop/bindings/device_arguments.hpp"
#include "khop/bindings/module.hpp"
#include "khop/bindings/py_device.hpp"
#include "khop/core/divide.hpp"

#ifdef KHOP_WITH_CUDA
#include "khop/cuda/gpu.hpp"
#endif
#ifdef KHOP_FAKE_CUDA
#include <cstdlib>
#include <string_view>
#endif

namespace khop::bindings {
namespace {

std::shared_ptr<PyDevice> emulated_device(uint64_t seed, int num_threads, bool maps_host,
                                          int island) {
  if (num_threads < 1) throw nb::value_error("num_threads must be at least 1");
  const device::EmulatedAbilities abilities{maps_host, island};
#ifdef KHOP_FAKE_CUDA
  // So that tests of emulated devices run on what GPUs run on.
  const char* const wanted = std::getenv("KHOP_EMULATED");
  if (wanted != nullptr && std::string_view(wanted) == "cuda") {
    return std::make_shared<PyDevice>(PyDevice{cuda::make_emulated_device(abilities), false, 0});
  }
#endif
  return std::make_shared<PyDevice>(
      PyDevice{device::make_emulated_device(seed, num_threads, abilities), false, 0});
}

#ifdef KHOP_WITH_CUDA
// Memory from two Python functions, which must live as long as the device. Memory is released by
// destructors, to which an exception (Ctrl-C, say) would be the end of the process; when the
// interpreter ends, the memory goes with it.
device::Allocator python_allocator(nb::callable allocate, nb::callable release) {
  return {[allocate](std::size_t bytes) {
            const nb::gil_scoped_acquire lock;
            return reinterpret_cast<void*>(nb::cast<uintptr_t>(allocate(bytes)));
          },
          [release](void* memory) {
            if (!nb::is_alive()) return;
            const nb::gil_scoped_acquire lock;
            try {
              release(reinterpret_cast<uintptr_t>(memory));
            } catch (nb::python_error& error) {
              error.discard_as_unraisable(release);
            }
          }};
}

std::shared_ptr<PyDevice> cuda_device(int index, uintptr_t stream,
                                      const std::optional<nb::callable>& allocate,
                                      const std::optional<nb::callable>& release) {
  if (allocate.has_value() != release.has_value()) {
    throw nb::value_error("allocate and release belong together: give both or neither");
  }
  device::Allocator allocator;
  if (allocate.has_value()) allocator = python_allocator(*allocate, *release);
  return std::make_shared<PyDevice>(
      PyDevice{cuda::make_device(index, stream, std::move(allocator)), true, index});
}
#endif

void gather(const PyDevice& self, const AnyArray& table, const AnyArray& rows, const AnyOut& out,
            bool waits) {
  self.check_place(table, "table");
  self.check_place(out, "out");
  const int row_width = width_of_ints(self, rows, "rows");
  if (table.ndim() < 1 || out.ndim() < 1) {
    throw nb::value_error("table and out need a row axis");
  }
  if (row_bytes_of(table) != row_bytes_of(out) || rows.shape(0) != out.shape(0)) {
    throw nb::value_error("out must have a row of the table's width for each of rows");
  }
  int64_t bad;
  {
    const ReleaseGilToWait release(waits);
    bad = self->gather(table.data(), entries_of(table), row_bytes_of(table), rows.data(), row_width,
                       entries_of(rows), out.data(), waits);
  }
  if (bad >= 0) {
    throw nb::index_error(("entry " + std::to_string(bad) + " of rows is outside a table of " +
                           std::to_string(table.shape(0)) + " rows")
                              .c_str());
  }
}

std::pair<NumpyArray<int64_t>, NumpyArray<int64_t>> divide(const In<int64_t>& numbers,
                                                           int64_t divisor) {
  if (divisor < 1) throw nb::value_error("divisor must be at least 1");
  const auto count = static_cast<int64_t>(numbers.shape(0));
  cpu::Buffer<int64_t> quotients(count);
  cpu::Buffer<int64_t> remainders(count);
  const Divider by(divisor);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t number = numbers.data()[i];
    if (number < 0) throw nb::value_error("numbers must not be negative");
    quotients.data()[i] = by.quotient(number);
    remainders.data()[i] = by.remainder(number, quotients.data()[i]);
  }
  return {to_numpy(std::move(quotients)), to_numpy(std::move(remainders))};
}

}  // namespace

void bind_device(nb::module_& m) {
  nb::class_<PyDevice> device(m, "Device",
                              R"(What runs thread-parallel kernels: a GPU, or one emulated.

Arrays handed to it lie in its memory: CUDA arrays (anything with DLPack) for a GPU, NumPy arrays
for an emulated device. Its memory must not be used by two threads at a time.)");
  device
      .def_prop_ro(
          "name", [](const PyDevice& self) { return self->name(); },
          "'cuda:0', ... or 'emulated', with the number of its island if that is not 0.")
      .def_prop_ro("is_cuda", [](const PyDevice& self) { return self.is_cuda; })
      .def_prop_ro(
          "num_launches", [](const PyDevice& self) { return self->num_launches(); },
          "Kernels launched so far.")
      .def_prop_ro(
          "stream", [](const PyDevice& self) { return self->stream(); },
          "Address of the CUDA stream on which everything happens; 0: there is none.")
      .def(
          "synchronize", [](const PyDevice& self) { self->synchronize(); },
          nb::call_guard<nb::gil_scoped_release>(), "Waits for everything that was asked for.")
      .def("gather", &gather, nb::arg("table"), nb::arg("rows"), nb::arg("out").noconvert(),
           nb::arg("wait") = true,
           R"(out[i] = table[rows[i]], on the device.

With `wait` false, which is for rows that are known to exist, nothing is waited for; a row that does
not exist is an error of the next gather that waits.

Raises:
    IndexError: a row does not exist; the other rows are written.
    RuntimeError: a CUDA call failed; names the call.)")
      .def(
          "blank_rows",
          [](const PyDevice& self, uintptr_t rows, int64_t row_bytes, uintptr_t mask,
             int64_t count) {
            if (row_bytes < 0 || count < 0) throw nb::value_error("sizes must not be negative");
            self->blank_rows(reinterpret_cast<void*>(rows), row_bytes,
                             reinterpret_cast<const uint8_t*>(mask), count);
          },
          nb::arg("rows"), nb::arg("row_bytes"), nb::arg("mask"), nb::arg("count"),
          "Sets rows to zero where the byte of the mask is 0. Addresses are of the device's "
          "memory.");
  bind_device_convert(device);
  bind_device_hotness(device);
  bind_device_walk(device);
  m.def("emulated_device", &emulated_device, nb::arg("seed") = 0, nb::arg("num_threads") = 1,
        nb::arg("maps_host") = true, nb::arg("island") = 0,
        R"(A device emulated on the CPU, for tests of what runs on GPUs.

Args:
    seed: determines the order in which the items of each kernel run.
    num_threads: threads that run them at the same time.
    maps_host: whether it can register host memory that it did not allocate.
    island: devices of the same island read each other's memory.)");
  m.def("divide", &divide, nb::arg("numbers").noconvert(), nb::arg("divisor"),
        "Quotients and remainders of int64 numbers as kernels compute them, for tests.");
#ifdef KHOP_WITH_CUDA
  m.def("cuda_device", &cuda_device, nb::arg("index") = 0, nb::arg("stream") = 0,
        nb::arg("allocate").none() = nb::none(), nb::arg("release").none() = nb::none(),
        R"(A GPU.

Args:
    index: its number.
    stream: address of a cudaStream_t; 0: a stream of its own.
    allocate, release: take a number of bytes and return an address, and take it back; None: the
        driver's pool.

Raises:
    RuntimeError: there is no such GPU, or a CUDA call failed; names the call.)");
  m.def("cuda_stream", &cuda::make_lasting_stream, nb::arg("index"),
        R"(The address of a new cudaStream_t of a GPU, which is never destroyed.

Its work comes before that of other streams, where both wait.

Raises:
    RuntimeError: there is no such GPU, or a CUDA call failed; names the call.)");
#endif
}

}  // namespace khop::bindings
