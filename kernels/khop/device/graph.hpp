// A graph whose arrays a device reads, of whatever integer types.
#pragma once

#include <cstdint>
#include <utility>

#include "khop/core/csr.hpp"

namespace khop::device {

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
  const void* neighbor_ids = nullptr;
  int neighbor_id_width = 0;  // 0 (none), 4 or 8 bytes
  int64_t max_degree = 0;     // of any row

  bool operator==(const GraphArrays& other) const {
    return indptr == other.indptr && indices == other.indices && row_ids == other.row_ids &&
           num_rows == other.num_rows && num_edges == other.num_edges &&
           first_row == other.first_row && first_edge == other.first_edge && times == other.times &&
           weight_sums == other.weight_sums && weight_guide == other.weight_guide &&
           neighbor_ids == other.neighbor_ids;
  }

  DeviceCsr view() const {
    return typed_view(AnyInts{indptr, indptr_width}, AnyInts{indices, indices_width});
  }

  // Calls f with the CsrView of the arrays' types.
  template <class F>
  decltype(auto) visit(F&& f) const {
    if (indptr_width == 4) return with_pointers<int32_t>(std::forward<F>(f));
    return with_pointers<int64_t>(std::forward<F>(f));
  }

 private:
  template <class Ptr, class F>
  decltype(auto) with_pointers(F&& f) const {
    const auto* const rows = static_cast<const Ptr*>(indptr);
    if (indices_width == 4) return f(typed_view(rows, static_cast<const int32_t*>(indices)));
    return f(typed_view(rows, static_cast<const int64_t*>(indices)));
  }
  template <class Indptr, class Indices>
  CsrArrays<Indptr, Indices> typed_view(Indptr typed_indptr, Indices typed_indices) const {
    return {typed_indptr, typed_indices, row_ids,          row_id_width, num_rows,
            num_edges,    first_row,     first_edge,       times,        weight_sums,
            weight_guide, neighbor_ids,  neighbor_id_width};
  }
};

// The arrays of a view, and the largest degree of its rows.
template <class Ptr, class Col>
GraphArrays arrays_of(const CsrView<Ptr, Col>& view) {
  int64_t max_degree = 0;
  for (int64_t row = 0; row < view.num_rows; ++row) {
    const auto begin = static_cast<int64_t>(view.indptr[row]);
    const auto end = static_cast<int64_t>(view.indptr[row + 1]);
    // Rows that are not sound are refused when they are drawn from.
    if (view.row_is_sound(begin, end) && end - begin > max_degree) max_degree = end - begin;
  }
  return {view.indptr,       sizeof(Ptr),       view.indices,
          sizeof(Col),       view.row_ids,      view.row_id_width,
          view.num_rows,     view.num_edges,    view.first_row,
          view.first_edge,   view.times,        view.weight_sums,
          view.weight_guide, view.neighbor_ids, view.neighbor_id_width,
          max_degree};
}

}  // namespace khop::device
