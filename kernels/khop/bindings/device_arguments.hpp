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

template <class T>
const T* data_of(const PyDevice& self, const std::optional<DeviceIn<T>>& array, int64_t count,
                 const char* name) {
  if (!array.has_value()) return nullptr;
  self.check_place(*array, name);
  check_length(entries_of(*array), count, name);
  return array->data();
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

inline device::GraphArrays graph_of(const PyDevice& self, const AnyArray& indptr,
                                    const AnyArray& indices, int64_t first_row) {
  device::GraphArrays graph{};
  graph.indptr_width = width_of_ints(self, indptr, "indptr");
  graph.indices_width = width_of_ints(self, indices, "indices");
  graph.indptr = indptr.data();
  graph.indices = indices.data();
  if (indptr.shape(0) < 1) throw nb::value_error("indptr must hold at least one entry");
  graph.num_rows = entries_of(indptr) - 1;
  graph.num_edges = entries_of(indices);
  graph.first_row = first_row;
  check_first(first_row, graph.num_rows, "first_row");
  return graph;
}

}  // namespace khop::bindings
