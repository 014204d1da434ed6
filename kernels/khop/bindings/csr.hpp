// The Python object behind a CsrView: checks its arrays once and keeps them alive.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "khop/bindings/arrays.hpp"
#include "khop/core/csr.hpp"
#include "khop/cpu/row_tables.hpp"

namespace khop::bindings {

class Csr {
 public:
  Csr(InArray indptr, InArray indices, std::optional<InArray> row_ids, int64_t first_row,
      int64_t first_edge, std::optional<InArray> times = std::nullopt,
      std::optional<InArray> weight_sums = std::nullopt,
      std::optional<InArray> weight_guide = std::nullopt,
      std::optional<InArray> neighbor_ids = std::nullopt);

  int64_t num_rows() const { return num_rows_; }
  int64_t num_edges() const { return num_edges_; }
  int64_t first_row() const { return first_row_; }
  bool has_times() const { return times_.has_value(); }
  bool has_weights() const { return weight_sums_.has_value(); }
  bool knows_neighbors() const { return row_id_width_ == 0 || neighbor_id_width_ != 0; }
  bool has_wide_columns() const { return is_type<int64_t>(indices_); }

  // Which of the arrays begins there.
  const InArray& array_at(const void* data) const;

  // The arrays, whatever their types.
  DeviceCsr any_view() const;

  // What answers many questions about edges; made by the first call, and kept.
  const cpu::RowTables& row_tables() const;

  // Calls f with the CsrView of the arrays' types.
  template <class F>
  decltype(auto) visit(F&& f) const {
    return visit_ints(indptr_, "indptr", [&](auto* indptr) -> decltype(auto) {
      return visit_ints(indices_, "indices", [&](auto* indices) -> decltype(auto) {
        using Ptr = std::remove_const_t<std::remove_pointer_t<decltype(indptr)>>;
        using Col = std::remove_const_t<std::remove_pointer_t<decltype(indices)>>;
        return f(CsrView<Ptr, Col>{
            indptr, indices, row_ids_data_, row_id_width_, num_rows_, num_edges_, first_row_,
            first_edge_, data_of<int64_t>(times_), data_of<uint64_t>(weight_sums_),
            data_of<uint32_t>(weight_guide_), neighbor_ids_data_, neighbor_id_width_});
      });
    });
  }

  // Bytes of a row pointer, and of a neighbour.
  std::pair<int, int> widths() const {
    return visit([](const auto& view) {
      return std::pair<int, int>(sizeof(*view.indptr), sizeof(*view.indices));
    });
  }

 private:
  template <class T>
  static const T* data_of(const std::optional<InArray>& array) {
    return array.has_value() ? static_cast<const T*>(array->data()) : nullptr;
  }

  InArray indptr_;
  InArray indices_;
  std::optional<InArray> row_ids_;
  std::optional<InArray> times_;
  std::optional<InArray> weight_sums_;
  std::optional<InArray> weight_guide_;
  std::optional<InArray> neighbor_ids_;
  const void* row_ids_data_ = nullptr;
  int row_id_width_ = 0;
  const void* neighbor_ids_data_ = nullptr;
  int neighbor_id_width_ = 0;
  int64_t num_rows_ = 0;
  int64_t num_edges_ = 0;
  int64_t first_row_ = 0;
  int64_t first_edge_ = 0;
  mutable std::mutex making_tables_;
  mutable std::unique_ptr<cpu::RowTables> row_tables_;
};

}  // namespace khop::bindings
