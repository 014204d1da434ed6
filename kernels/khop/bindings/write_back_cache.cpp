#include "khop/cpu/write_back_cache.hpp"

#include <cerrno>
#include <utility>

#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

nb::tuple load(cpu::WriteBackCache& cache, const In<int64_t>& blocks, bool changes) {
  cpu::WriteBackCache::Loaded out;
  cache.load(blocks.data(), static_cast<int64_t>(blocks.shape(0)), changes, out);
  return nb::make_tuple(to_numpy(std::move(out.slots)), to_numpy(std::move(out.misses)),
                        to_numpy(std::move(out.miss_slots)), to_numpy(std::move(out.written)),
                        to_numpy(std::move(out.written_slots)));
}

void write(int file, const In<int64_t>& blocks, const InArray& memory) {
  const auto count = static_cast<int64_t>(blocks.shape(0));
  if (memory.ndim() != 2 || length(memory) < count || row_bytes_of(memory) < 1) {
    throw nb::value_error("memory must have the bytes of each block");
  }
  for (int64_t i = 0; i < count; ++i) {
    if (blocks.data()[i] < 0 || (i > 0 && blocks.data()[i] <= blocks.data()[i - 1])) {
      throw nb::value_error("blocks must be ascending, and each once");
    }
  }
  int error;
  {
    nb::gil_scoped_release release;
    error = cpu::write_blocks(file, blocks.data(), count, static_cast<const char*>(memory.data()),
                              row_bytes_of(memory));
  }
  if (error != 0) {
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
}

}  // namespace

void bind_write_back_cache(nb::module_& m) {
  nb::class_<cpu::WriteBackCache>(
      m, "WriteBackCache", R"(Plan of a write-back cache of a file's blocks: blocks and slots.)")
      .def(nb::init<int64_t, int64_t>(), nb::arg("num_blocks"), nb::arg("capacity"))
      .def("load", &load, nb::arg("blocks").noconvert(), nb::arg("changes"),
           R"(Bring blocks into the cache.

Args:
    blocks: [n] int64, at most as many as the cache has slots.
    changes: whether they will be changed.

Returns:
    The slot of each block, the blocks to read and their slots, and the blocks to write and their
    slots so far. Copy the latter before the former are read.)");
  m.def("write_blocks", &write, nb::arg("file"), nb::arg("blocks").noconvert(),
        nb::arg("memory").noconvert(),
        R"(Write blocks of a file, and wait until they are written.

Args:
    file: descriptor.
    blocks: [n] int64, ascending.
    memory: [n or more, bytes of a block], aligned as the file's descriptor needs.

Raises:
    OSError: a write failed.)");
}

}  // namespace khop::bindings
