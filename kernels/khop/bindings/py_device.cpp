#include "khop/bindings/py_device.hpp"

namespace khop::bindings {
namespace {

// Of torch's tensors, and of all that has Python's buffers; otherwise false.
bool find_memory(nb::handle object, uintptr_t& begin, std::size_t& bytes) {
  if (nb::hasattr(object, "untyped_storage")) {
    const nb::object storage = object.attr("untyped_storage")();
    begin = nb::cast<uintptr_t>(storage.attr("data_ptr")());
    bytes = nb::cast<std::size_t>(storage.attr("nbytes")());
    return true;
  }
  Py_buffer buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_ANY_CONTIGUOUS) != 0) {
    PyErr_Clear();
    return false;
  }
  begin = reinterpret_cast<uintptr_t>(buffer.buf);
  bytes = static_cast<std::size_t>(buffer.len);
  PyBuffer_Release(&buffer);
  return true;
}

}  // namespace

device::HostOwner owner_of(const InArray& array) {
  device::HostOwner owner{keep(array), reinterpret_cast<uintptr_t>(array.data()), array.nbytes()};
  try {
    nb::object object = nb::cast(array);
    for (nb::object base = nb::getattr(object, "base", nb::none()); !base.is_none();
         base = nb::getattr(object, "base", nb::none())) {
      object = base;
    }
    uintptr_t begin = 0;
    std::size_t bytes = 0;
    if (!find_memory(object, begin, bytes)) return owner;
    if (begin <= owner.begin && owner.begin + owner.bytes <= begin + bytes) {
      owner.begin = begin;
      owner.bytes = bytes;
    }
  } catch (const nb::python_error&) {  // of an object that behaves as no array does
  }
  return owner;
}

}  // namespace khop::bindings
