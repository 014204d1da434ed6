// Rows to draw from: where their edges lie, and how much of them a seed may see.
#pragma once

#include <algorithm>
#include <cstdint>

#include "khop/core/csr.hpp"
#include "khop/core/eligible.hpp"
#include "khop/core/hop_options.hpp"
#include "khop/cpu/exclude.hpp"
#include "khop/cpu/prefetch.hpp"
#include "khop/cpu/row_errors.hpp"
#include "khop/cpu/stop.hpp"

namespace khop::cpu {

// How one hop over one edge type is drawn, and what the batch keeps out of it.
struct HopSpec : HopOptions {
  HopSpec(const HopOptions& options, const PairSet* pairs, const StopFlag* flag = nullptr)
      : HopOptions(options), excluded(pairs), stop(flag) {}

  PairSet::Span excluded_of(int64_t row) const {
    return excluded == nullptr ? PairSet::Span{nullptr, nullptr} : excluded->of(row);
  }

  const PairSet* excluded;  // (row, neighbour) pairs; may be null
  const StopFlag* stop;     // ends the draw if it is set; may be null
};

// Rows to draw from. `trees` and `times` (of the trees' seeds) may be null: one tree, no times.
struct RowSet {
  const int64_t* ids;
  const int32_t* trees;
  const int64_t* times;

  RowSet from(int64_t first) const {
    return {ids + first, trees == nullptr ? nullptr : trees + first,
            times == nullptr ? nullptr : times + first};
  }
};

// Finds rows of a graph, and fetches ahead what finding them and drawing from them reads.
template <class Ptr, class Col>
class RowFinder {
 public:
  explicit RowFinder(const CsrView<Ptr, Col>& graph) : graph_(graph) {}

  void prefetch_rows(const int64_t* ids, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = graph_.row_of(ids[i]);
      if (row < 0 || row >= graph_.num_rows) continue;
      prefetch_scattered_line(&graph_.indptr[row]);
      prefetch_scattered_line(&graph_.indptr[row + 1]);  // one row in sixteen ends on the next line
      if (graph_.row_id_width != 0) {
        prefetch_scattered_line(static_cast<const char*>(graph_.row_ids) +
                                row * graph_.row_id_width);
      }
    }
  }

  Row find(const RowSet& rows, int64_t i) const {
    Row row = find_whole(rows, i);
    if (is_timed(rows)) row.end = graph_.visible_end(row.begin, row.end, rows.times[i]);
    return row;
  }

  // Many rows at a time: searches in their times wait for memory together.
  void find(const RowSet& rows, int64_t count, Row* out) const {
    for (int64_t i = 0; i < count; ++i) out[i] = find_whole(rows, i);
    if (is_timed(rows)) hide_the_future(rows.times, count, out);
  }

 private:
  bool is_timed(const RowSet& rows) const {
    return graph_.times != nullptr && rows.times != nullptr;
  }

  Row find_whole(const RowSet& rows, int64_t i) const {
    const int64_t id = rows.ids[i];
    const int64_t row = graph_.row_of(id);
    if (row < 0 || row >= graph_.num_rows) throw_no_such_row(id, graph_.first_row, graph_.num_rows);
    const int64_t begin = static_cast<int64_t>(graph_.indptr[row]);
    const int64_t end = static_cast<int64_t>(graph_.indptr[row + 1]);
    if (!graph_.row_is_sound(begin, end)) throw_corrupt_row(row, begin, end, graph_.num_edges);
    const uint32_t tree = rows.trees == nullptr ? 0 : static_cast<uint32_t>(rows.trees[i]);
    return {id, row, tree, begin, end, end};
  }

  // CsrView::visible_end of each row, a halving of all of them at a time. `begin` and `end` close
  // in on the first edge that is hidden; the rows' own begins are put back at the end.
  void hide_the_future(const int64_t* times, int64_t count, Row* rows) const {
    const int64_t* const edge_times = graph_.times;
    int64_t longest = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Row& row = rows[i];
      longest = std::max(longest, row.end - row.begin);
      prefetch_line(&edge_times[row.begin + (row.end - row.begin) / 2]);
    }
    for (int64_t left = longest; left > 0; left /= 2) {
      for (int64_t i = 0; i < count; ++i) {
        Row& row = rows[i];
        if (row.begin == row.end) continue;
        const int64_t middle = row.begin + (row.end - row.begin) / 2;
        const bool seen = edge_times[middle] <= times[i];
        row.begin = seen ? middle + 1 : row.begin;
        row.end = seen ? row.end : middle;
        prefetch_line(&edge_times[row.begin + (row.end - row.begin) / 2]);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      rows[i].begin = static_cast<int64_t>(graph_.indptr[rows[i].row]);
    }
  }

  const CsrView<Ptr, Col>& graph_;
};

}  // namespace khop::cpu
