// Constrained draws from rows: of which pairs are excluded, or by weight.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>

#include "khop/core/csr.hpp"
#include "khop/core/eligible.hpp"
#include "khop/core/pick.hpp"
#include "khop/core/weights.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/exclude.hpp"
#include "khop/cpu/excluded_finder.hpp"
#include "khop/cpu/prefetch.hpp"
#include "khop/cpu/rows.hpp"
#include "khop/cpu/uniform.hpp"
#include "khop/cpu/weighted_interleaved.hpp"

namespace khop::cpu {

// What one row contributes to a batch, as stored. Throws std::length_error if it is too much.
inline int32_t checked_count(int64_t picks) {
  if (picks > std::numeric_limits<int32_t>::max()) {
    throw std::length_error("a row contributes more than 2^31 - 1 neighbours to one batch");
  }
  return static_cast<int32_t>(picks);
}

template <class Ptr, class Col>
class ConstrainedDrawer {
 public:
  ConstrainedDrawer(const CsrView<Ptr, Col>& graph, const HopSpec& spec)
      : graph_(graph), spec_(spec), finder_(graph, spec.stop) {}

  // Appends positions drawn from a row some of whose edges are excluded.
  void draw_uniformly(const Row& row, const PairSet::Span& excluded, Buffer<int64_t>& positions) {
    if (spec_.fanout == 0) return;
    finder_.find(row, excluded);
    const EligibleEdges<CsrView<Ptr, Col>> edges = edges_of(row);
    const int64_t begin = begin_of(row, edges);
    const ExcludedPositions excluded_positions = finder_.positions().from(begin);
    const int64_t degree = row.end - begin - excluded_positions.count;
    if (takes_all(degree, spec_.fanout, spec_.replace)) {
      edges.take(begin, [&](int64_t edge) { positions.push_back(edge); });
    } else if (degree > 0) {
      int64_t* out = positions.extend(spec_.fanout);
      picker_.pick(draws_of(row), degree, spec_.fanout, spec_.replace, out);
      for (int64_t j = 0; j < spec_.fanout; ++j) {
        out[j] = excluded_positions.step_over(begin + out[j]);
      }
    }
  }

  // Places that a row's draw by weight takes beside other rows': its picks, and the edges between
  // which it draws.
  int64_t places_of(const Row& row) const {
    const int64_t excluded = std::min(spec_.excluded_of(row.id).size(), row.end - row.begin);
    return std::max<int64_t>(spec_.fanout, 1) + excluded;
  }

  // Appends positions drawn by weight from a block of rows.
  void draw_by_weight(const Row* rows, int64_t count, int32_t* counts, Buffer<int64_t>& positions) {
    if (spec_.fanout == 0) {
      std::fill_n(counts, count, 0);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      if (rows[i].begin == rows[i].end) continue;
      prefetch_line(&graph_.weight_sums[rows[i].end - 1]);
      // Only rows that are taken whole, or from within, are read from the beginning.
      const bool from_begin = spec_.last || rows[i].end - rows[i].begin <= spec_.fanout;
      if (from_begin) prefetch_line(&graph_.weight_sums[rows[i].begin]);
    }
    interleaved_.begin(spec_.fanout, spec_.replace);
    taken_.clear();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t before = taken_.size();
      const bool drawn = begin_row(rows[i]);
      counts[i] = drawn ? -1 : checked_count(taken_.size() - before);
    }
    interleaved_.draw();
    // In the order of rows.
    const int64_t* taken = taken_.data();
    int64_t drawn_row = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (counts[i] < 0) {
        counts[i] = checked_count(interleaved_.num_picked(drawn_row));
        std::copy_n(interleaved_.picked(drawn_row++), counts[i], positions.extend(counts[i]));
      } else {
        std::copy_n(taken, counts[i], positions.extend(counts[i]));
        taken += counts[i];
      }
    }
  }

 private:
  EligibleEdges<CsrView<Ptr, Col>> edges_of(const Row& row) const {
    return {graph_, row, finder_.positions(), spec_.weighted};
  }

  // Where that part of a row begins which may be drawn.
  int64_t begin_of(const Row& row, const EligibleEdges<CsrView<Ptr, Col>>& edges) const {
    return spec_.last && spec_.fanout > 0 ? edges.begin_of_last(spec_.fanout) : row.begin;
  }

  NodeDraws draws_of(const Row& row) const {
    return {spec_.key, graph_.original_id(row.row), row.tree};
  }

  // Takes a row whole, or prepares drawing from it, which it returns.
  bool begin_row(const Row& row) {
    finder_.find(row, spec_.excluded_of(row.id));
    const EligibleEdges<CsrView<Ptr, Col>> edges = edges_of(row);
    const int64_t begin = begin_of(row, edges);
    const ExcludedPositions excluded_positions = finder_.positions().from(begin);
    if (takes_all(row.end - begin - excluded_positions.count, spec_.fanout, spec_.replace)) {
      edges.take(begin, [&](int64_t edge) { taken_.push_back(edge); });
      return false;
    }
    if (begin == row.end) return false;
    interleaved_.add(edges.weights(), row.begin, {begin, row.end}, excluded_positions.edges,
                     excluded_positions.count, draws_of(row));
    return true;
  }

  const CsrView<Ptr, Col>& graph_;
  const HopSpec& spec_;
  UniformPicker picker_;
  ExcludedFinder<Ptr, Col> finder_;
  WeightedInterleaved interleaved_;
  Buffer<int64_t> taken_;  // of rows that are taken whole
};

}  // namespace khop::cpu
