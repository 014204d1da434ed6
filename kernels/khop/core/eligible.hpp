// Eligible edges of a row: its window in time, less excluded positions, less weights of zero.
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"
#include "khop/core/pick.hpp"
#include "khop/core/search.hpp"
#include "khop/core/weights.hpp"

namespace khop {

// A row, as far as its tree may see it: edges [begin, end), a prefix of the whole row, which ends
// at `row_end`.
struct Row {
  int64_t id;
  int64_t row;
  uint32_t tree;
  int64_t begin;
  int64_t end;
  int64_t row_end;
};

// Edges of a row that may not be drawn, ascending.
struct ExcludedPositions {
  const int64_t* edges;
  int64_t count;

  // Those from an edge on.
  KHOP_HD ExcludedPositions from(int64_t edge) const {
    const int64_t before = first_not_below(edges, count, edge);
    return {edges + before, count - before};
  }
  KHOP_HD bool contains(int64_t edge) const {
    const int64_t place = first_not_below(edges, count, edge);
    return place < count && edges[place] == edge;
  }
  // The edge that is the `edge`-th if excluded ones are not counted.
  KHOP_HD int64_t step_over(int64_t edge) const {
    int64_t low = 0;
    int64_t high = count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (edges[middle] - middle <= edge) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return edge + low;
  }
};

template <class Graph>
class EligibleEdges {
 public:
  KHOP_HD EligibleEdges(const Graph& graph, const Row& row, ExcludedPositions excluded_positions,
                        bool weighted)
      : graph_(graph), row_(row), excluded_positions_(excluded_positions), weighted_(weighted) {}

  KHOP_HD WeightedRow weights() const {
    return {graph_.weight_sums + row_.begin, graph_.weight_guide + row_.begin,
            row_.row_end - row_.begin};
  }

  KHOP_HD bool has_weight(int64_t edge) const {
    return !weighted_ || weights().weight(edge - row_.begin) > 0;
  }

  // First edge of the last `count` that may be drawn.
  KHOP_HD int64_t begin_of_last(int64_t count) const {
    int64_t left = count;
    int64_t edge = row_.end;
    int64_t last_excluded = excluded_positions_.count;
    while (edge > row_.begin && left > 0) {
      --edge;
      if (last_excluded > 0 && excluded_positions_.edges[last_excluded - 1] == edge) {
        --last_excluded;
      } else if (has_weight(edge)) {
        --left;
      }
    }
    return edge;
  }

  // Calls take(edge) for all from an edge on, in order.
  template <class Take>
  KHOP_HD void take(int64_t begin, Take&& take) const {
    ExcludedPositions excluded_positions = excluded_positions_.from(begin);
    for (int64_t edge = begin; edge < row_.end; ++edge) {
      if (excluded_positions.count > 0 && excluded_positions.edges[0] == edge) {
        ++excluded_positions.edges;
        --excluded_positions.count;
      } else if (has_weight(edge)) {
        take(edge);
      }
    }
  }

 private:
  const Graph& graph_;
  const Row& row_;
  ExcludedPositions excluded_positions_;
  bool weighted_;
};

}  // namespace khop
