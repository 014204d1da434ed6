// A graph whose arrays a device reads, of whatever integer types.
#pragma once

#include <cstdint>
#include <utility>

#include "khop/csr.hpp"

namespace khop {

struct GraphArrays {
  const void* indptr;
  int indptr_width;  // 4 or 8 bytes
  const void* indices;
  int indices_width;
  const void* row_ids;
  int row_id_width;  // 0 (none), 4 or 8 bytes
  int64_t num_rows;
  int64_t num_edges;
  int64_t first_row;
  int64_t first_edge;
  const int64_t* times = nullptr;
  const uint64_t* weight_sums = nullptr;
  const uint32_t* weight_guide = nullptr;

  // Calls f with the CsrView of the arrays' types.
  template <class F>
  decltype(auto) visit(F&& f) const {
    if (indptr_width == 4) return with_pointers<int32_t>(std::forward<F>(f));
    return with_pointers<int64_t>(std::forward<F>(f));
  }

 private:
  template <class Ptr, class F>
  decltype(auto) with_pointers(F&& f) const {
    if (indices_width == 4) return f(view<Ptr, int32_t>());
    return f(view<Ptr, int64_t>());
  }
  template <class Ptr, class Col>
  CsrView<Ptr, Col> view() const {
    return {static_cast<const Ptr*>(indptr),
            static_cast<const Col*>(indices),
            row_ids,
            row_id_width,
            num_rows,
            num_edges,
            first_row,
            first_edge,
            times,
            weight_sums,
            weight_guide};
  }
};

}  // namespace khop
