// Draws of LABOR from one row after the other.
//
// Every neighbour's number is a block of Philox, which is what a draw costs: the uppermost 16 bits
// of sixteen are made at a time (lanes.hpp), and only neighbours that these do not rule out have
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

namespace khop {

template <class Ptr, class Col>
class RaceDrawer {
 public:
  RaceDrawer(const CsrView<Ptr, Col>& graph, const HopSpec& spec) : graph_(graph), spec_(spec) {}

  // Appends the positions drawn from a row; returns how many.
  int64_t draw(const Row& row, Buffer<int64_t>& positions) {
    if (spec_.fanout == 0) return 0;
    const int64_t before = positions.size();
    find_holes(row);
    const Holes holes{holes_.data(), static_cast<int64_t>(holes_.size())};
    if (takes_all(row.end - row.begin - holes.count, spec_.fanout, false)) {
      const EligibleEdges<CsrView<Ptr, Col>> edges(graph_, row, holes, spec_.weighted);
      edges.take(row.begin, [&](int64_t edge) { positions.push_back(edge); });
      return positions.size() - before;
    }
    words_.resize(static_cast<std::size_t>(race_words(spec_.fanout, spec_.weighted)));
    int64_t* const out = positions.extend(spec_.fanout);
    const int64_t count = spec_.weighted ? pick_by_race<true>(graph_, row, holes, spec_.key,
                                                              spec_.fanout, words_.data(), out)
                                         : pick_in_lanes(row, holes, out);
    positions.resize(before + count);
    return count;
  }

 private:
  // As pick_by_race<false>.
  int64_t pick_in_lanes(const Row& row, const Holes& holes, int64_t* out) {
    Race<false> race(words_.data(), out, spec_.fanout);
    RowLanes lanes{};
    std::fill_n(lanes.tree, kLanes, row.tree);
    // Draws below 2^16 are the upper halves of words: of the second, those of a number.
    std::fill_n(lanes.degree, kLanes, uint32_t{1} << 16);
    for (int64_t first = row.begin; first < row.end; first += kLanes) {
      const auto some = static_cast<int>(std::min<int64_t>(kLanes, row.end - first));
      for (int lane = 0; lane < some; ++lane) {
        const uint64_t node = graph_.original_neighbor(first + lane);
        lanes.node_low[lane] = static_cast<uint32_t>(node);
        lanes.node_high[lane] = static_cast<uint32_t>(node >> 32);
      }
      pick_lanes_(spec_.key, lanes, 2, true, drawn_.data());
      const uint32_t* const upper = drawn_.data() + kLanes;
      for (int lane = 0; lane < some; ++lane) {
        if (upper[lane] > race.slowest() >> 48) continue;
        const int64_t edge = first + lane;
        if (holes.contains(edge)) continue;
        race.enter(race_time(spec_.key, graph_.original_neighbor(edge), row.tree), 1, edge);
      }
    }
    return race.finish();
  }

  void find_holes(const Row& row) {
    holes_.clear();
    if (spec_.excluded == nullptr) return;
    const PairSet::Span excluded = spec_.excluded->of(row.id);
    if (excluded.empty()) return;
    for (int64_t e = row.begin; e < row.end; ++e) {
      if (excluded.contains(static_cast<int64_t>(graph_.indices[e]))) holes_.push_back(e);
    }
  }

  const CsrView<Ptr, Col>& graph_;
  const HopSpec& spec_;
  const PickLanes pick_lanes_ = lane_pickers().front().pick;
  alignas(64) std::array<uint32_t, 2 * kLanes> drawn_;
  std::vector<int64_t> holes_;   // excluded edges of the row at hand, ascending
  std::vector<uint64_t> words_;  // of the race
};

}  // namespace khop
