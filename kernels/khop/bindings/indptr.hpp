// Row pointers that come from Python.
#pragma once

#include <cstdint>
#include <string>

#include "khop/bindings/arrays.hpp"

namespace khop::bindings {

// The row pointers of `num_edges` entries: begin and end are right, the rest is up to the kernels.
template <class F>
decltype(auto) visit_indptr(const InArray& indptr, int64_t num_edges, const char* what, F&& f) {
  return visit_ints(indptr, "indptr", [&](auto* data) -> decltype(auto) {
    const int64_t num_rows = length(indptr) - 1;
    if (num_rows < 0) throw nb::value_error("indptr must hold at least one entry");
    if (data[0] != 0) throw nb::value_error("indptr must begin with 0");
    if (static_cast<int64_t>(data[num_rows]) != num_edges) {
      throw nb::value_error(("indptr ends with " + std::to_string(data[num_rows]) +
                             " but there are " + std::to_string(num_edges) + " " + what)
                                .c_str());
    }
    return f(data, num_rows);
  });
}

[[noreturn]] inline void throw_corrupt() { throw nb::value_error("indptr must not decrease"); }

}  // namespace khop::bindings
