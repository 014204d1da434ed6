// Draws of LABOR from one row after the other.
//
// Every neighbour's variate is a block of Philox, which is what a draw costs: the uppermost 16 bits
// of sixteen are made at a time (simd.hpp), and only neighbours that these do not rule out have
// the whole of theirs worked out.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "khop/core/csr.hpp"
#include "khop/core/eligible.hpp"
#include "khop/core/labor.hpp"
#include "khop/core/pick.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/rows.hpp"
#include "khop/cpu/simd.hpp"

namespace khop::cpu {

template <class Ptr, class Col>
class LaborDrawer {
 public:
  LaborDrawer(const CsrView<Ptr, Col>& graph, const HopSpec& spec) : graph_(graph), spec_(spec) {}

  // Appends the positions drawn from a row; returns how many.
  int64_t draw(const Row& row, Buffer<int64_t>& positions) {
    if (spec_.fanout == 0) return 0;
    const int64_t before = positions.size();
    find_excluded(row);
    const ExcludedPositions excluded_positions{excluded_positions_.data(),
                                               static_cast<int64_t>(excluded_positions_.size())};
    if (takes_all(row.end - row.begin - excluded_positions.count, spec_.fanout, false)) {
      const EligibleEdges<CsrView<Ptr, Col>> edges(graph_, row, excluded_positions, spec_.weighted);
      edges.take(row.begin, [&](int64_t edge) { positions.push_back(edge); });
      return positions.size() - before;
    }
    words_.resize(static_cast<std::size_t>(labor_words(spec_.fanout, spec_.weighted)));
    int64_t* const out = positions.extend(spec_.fanout);
    const int64_t count = spec_.weighted
                              ? pick_labor<true>(graph_, row, excluded_positions, spec_.key,
                                                 spec_.fanout, words_.data(), out)
                              : pick_simd(row, excluded_positions, out);
    positions.resize(before + count);
    return count;
  }

 private:
  // As pick_labor<false>.
  int64_t pick_simd(const Row& row, const ExcludedPositions& excluded_positions, int64_t* out) {
    SmallestVariates<false> smallest(words_.data(), out, spec_.fanout);
    SimdRows simd_rows{};
    std::fill_n(simd_rows.tree, kLanes, row.tree);
    // Draws below 2^16 are the upper halves of words: of the second, those of a number.
    std::fill_n(simd_rows.degree, kLanes, uint32_t{1} << 16);
    for (int64_t first = row.begin; first < row.end; first += kLanes) {
      const auto some = static_cast<int>(std::min<int64_t>(kLanes, row.end - first));
      for (int lane = 0; lane < some; ++lane) {
        const uint64_t node = graph_.original_neighbor(first + lane);
        simd_rows.node_low[lane] = static_cast<uint32_t>(node);
        simd_rows.node_high[lane] = static_cast<uint32_t>(node >> 32);
      }
      pick_simd_(spec_.key, simd_rows, 2, true, drawn_.data());
      const uint32_t* const upper = drawn_.data() + kLanes;
      for (int lane = 0; lane < some; ++lane) {
        if (upper[lane] > smallest.threshold() >> 48) continue;
        const int64_t edge = first + lane;
        if (excluded_positions.contains(edge)) continue;
        smallest.offer(labor_variate(spec_.key, graph_.original_neighbor(edge), row.tree), 1, edge);
      }
    }
    return smallest.finish();
  }

  void find_excluded(const Row& row) {
    excluded_positions_.clear();
    if (spec_.excluded == nullptr) return;
    const PairSet::Span excluded = spec_.excluded->of(row.id);
    if (excluded.empty()) return;
    for (int64_t e = row.begin; e < row.end; ++e) {
      if (excluded.contains(static_cast<int64_t>(graph_.indices[e])))
        excluded_positions_.push_back(e);
    }
  }

  const CsrView<Ptr, Col>& graph_;
  const HopSpec& spec_;
  const PickFunction pick_simd_ = simd_pickers().front().pick;
  alignas(64) std::array<uint32_t, 2 * kLanes> drawn_;
  std::vector<int64_t> excluded_positions_;  // excluded edges of the row at hand, ascending
  std::vector<uint64_t> words_;              // of `SmallestVariates`
};

}  // namespace khop::cpu
