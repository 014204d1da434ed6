// Arrays that operations of devices take.
#pragma once

#include <optional>
#include <string>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/py_device.hpp"

namespace khop::bindings {

template <class T>
using DeviceIn = nb::ndarray<const T, nb::ndim<1>, nb::c_contig>;
template <class T>
using DeviceOut = nb::ndarray<T, nb::ndim<1>, nb::c_contig>;

template <class Array>
int64_t entries_of(const Array& array) {
  return static_cast<int64_t>(array.shape(0));
}

template <class Array>
int width_of_ints(const PyDevice& self, const Array& array, const char* name) {
  self.check_place(array, name);
  return visit_ints(array, name, [](auto* data) { return static_cast<int>(sizeof(*data)); });
}

// One integer of an array in device memory. Waits.
inline int64_t read_int(const PyDevice& self, const void* data, int width, int64_t place) {
  const char* const at = static_cast<const char*>(data) + place * width;
  int32_t narrow = 0;
  int64_t wide = 0;
  if (width == 8) {
    self->download(&wide, at, sizeof(wide));
    return wide;
  }
  self->download(&narrow, at, sizeof(narrow));
  return narrow;
}

}  // namespace khop::bindings
