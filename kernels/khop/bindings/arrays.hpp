// NumPy arrays in and out of the kernels: type checks and ownership, nothing else.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "khop/cpu/buffer.hpp"

namespace khop::bindings {

namespace nb = nanobind;

using InArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using OutArray = nb::ndarray<nb::c_contig, nb::device::cpu>;
template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using NumpyArray = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T, class Array>
bool is_type(const Array& array) {
  return array.dtype() == nb::dtype<T>();
}

// Calls f with a typed pointer to an int32 or int64 array.
template <class Array, class F>
decltype(auto) visit_ints(const Array& array, const char* name, F&& f) {
  if (array.ndim() != 1) {
    throw nb::value_error((std::string(name) + " must have one dimension").c_str());
  }
  if (is_type<int32_t>(array)) return f(static_cast<const int32_t*>(array.data()));
  if (is_type<int64_t>(array)) return f(static_cast<const int64_t*>(array.data()));
  throw nb::type_error((std::string(name) + " must be int32 or int64").c_str());
}

inline int64_t length(const InArray& array) { return static_cast<int64_t>(array.shape(0)); }
inline int64_t length(const OutArray& array) { return static_cast<int64_t>(array.shape(0)); }

// Bytes of one row: all axes but the first. An array without rows may have any other axes.
template <class Array>
int64_t row_bytes_of(const Array& array) {
  std::size_t bytes = array.itemsize();
  for (std::size_t d = 1; d < array.ndim(); ++d) {
    bytes = array.shape(d) == 0 ? 0 : bytes_of(static_cast<int64_t>(bytes), array.shape(d));
  }
  return static_cast<int64_t>(bytes);
}

// Lets other Python threads run during work on many bytes. Handing the interpreter lock over and
// waiting for it again takes longer than work on few.
class ReleaseGil {
 public:
  explicit ReleaseGil(int64_t bytes) {
    if (bytes >= kWorthReleasing) release_.emplace();
  }

 private:
  static constexpr int64_t kWorthReleasing = int64_t{256} << 10;
  std::optional<nb::gil_scoped_release> release_;
};

// Hands a buffer over to NumPy.
template <class T>
NumpyArray<T> to_numpy(cpu::Buffer<T>&& buffer) {
  auto* owned = new cpu::Buffer<T>(std::move(buffer));
  if (owned->data() == nullptr) owned->reserve(1);
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<cpu::Buffer<T>*>(p); });
  return NumpyArray<T>(owned->data(), {static_cast<std::size_t>(owned->size())}, owner);
}

}  // namespace khop::bindings
