// Draws from rows: which positions of each row one hop takes.
//
// What may be drawn of a row is constrained in steps: to what lies before the seed's time, less
// pairs that the batch excludes, less weights of zero, to the last k of it if the latest are asked
// for. Most rows need none of this and take the short way, sixteen at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "khop/core/pick.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/constrained.hpp"
#include "khop/cpu/labor.hpp"
#include "khop/cpu/rows.hpp"
#include "khop/cpu/simd.hpp"
#include "khop/cpu/uniform.hpp"

namespace khop::cpu {

// Most rows drawn at a time. That many are interleaved if drawn from by weight (if sixteen do, a
// batch takes 1.07 of the time); otherwise sixteen are drawn at once.
constexpr int64_t kBlockRows = 4 * kLanes;
// Fewer rows are interleaved where each draws many neighbours, or leaves many out: each of these
// takes 24 bytes until then.
constexpr int64_t kMaxInterleavedPicks = int64_t{1} << 16;
// LABOR reads rows whole, one after the other; so many of the next are fetched meanwhile.
constexpr int64_t kLaborRowsAhead = 8;

template <class Ptr, class Col>
class RowDrawer {
 public:
  RowDrawer(const CsrView<Ptr, Col>& graph, const HopSpec& spec)
      : graph_(graph), spec_(spec), finder_(graph), constrained_(graph, spec), labor_(graph, spec) {
    if (spec.method == HopMethod::kLabor && !graph.knows_neighbors()) {
      throw std::invalid_argument("LABOR needs a graph with the neighbours' original ids");
    }
    if (spec.weighted && graph.weight_sums == nullptr) {
      throw std::invalid_argument("weighted draws need a graph with weights");
    }
    if (spec.last && graph.times == nullptr) {
      throw std::invalid_argument("drawing the latest neighbours needs a graph with times");
    }
    // Without replacement a row's degree is the limit.
    if (spec.replace && spec.fanout > std::numeric_limits<int32_t>::max()) {
      throw std::length_error("a fan-out of " + std::to_string(spec.fanout) +
                              " with replacement is more than 2^31 - 1");
    }
  }

  void prefetch_rows(const int64_t* ids, int64_t count) const { finder_.prefetch_rows(ids, count); }

  // Appends the picked edge positions of a block of rows, and writes how many of each.
  void draw(const RowSet& rows, int64_t count, int32_t* counts, Buffer<int64_t>& positions) {
    if (spec_.method == HopMethod::kLabor) return draw_labor(rows, count, counts, positions);
    std::array<Row, kBlockRows> found;
    for (int64_t first = 0; first < count; first += kLanes) {
      const int64_t some = std::min<int64_t>(kLanes, count - first);
      Row* const block = found.data() + first;
      finder_.find(rows.from(first), some, block);
      if (spec_.weighted) continue;
      if (spec_.excluded == nullptr) {
        draw_block(block, some, counts + first, positions);
      } else {
        draw_around_exclusions(block, some, counts + first, positions);
      }
    }
    if (!spec_.weighted) return;
    for (int64_t first = 0, next = 0; first < count; first = next) {
      int64_t left = kMaxInterleavedPicks;
      do {
        const int64_t places = constrained_.places_of(found[static_cast<std::size_t>(next)]);
        if (places > left && next > first) break;
        left -= std::min(places, left);
      } while (++next < count);
      constrained_.draw_by_weight(found.data() + first, next - first, counts + first, positions);
    }
  }

 private:
  void draw_labor(const RowSet& rows, int64_t count, int32_t* counts, Buffer<int64_t>& positions) {
    std::array<Row, kBlockRows> found;
    for (int64_t first = 0; first < count; first += kLanes) {
      finder_.find(rows.from(first), std::min<int64_t>(kLanes, count - first),
                   found.data() + first);
    }
    for (int64_t i = -kLaborRowsAhead; i < count; ++i) {
      if (i + kLaborRowsAhead < count) {
        labor_.prefetch(found[static_cast<std::size_t>(i + kLaborRowsAhead)]);
      }
      if (i < 0) continue;
      counts[i] = checked_count(labor_.draw(found[static_cast<std::size_t>(i)], positions));
    }
  }

  // The block in stretches: few rows have pairs that are excluded.
  void draw_around_exclusions(const Row* rows, int64_t count, int32_t* counts,
                              Buffer<int64_t>& positions) {
    for (int64_t i = 0, next = 0; i < count; i = next) {
      const PairSet::Span excluded = spec_.excluded->of(rows[i].id);
      next = i + 1;
      if (!excluded.empty()) {
        const int64_t before = positions.size();
        constrained_.draw_uniformly(rows[i], excluded, positions);
        counts[i] = checked_count(positions.size() - before);
        continue;
      }
      while (next < count && spec_.excluded->of(rows[next].id).empty()) ++next;
      draw_block(rows + i, next - i, counts + i, positions);
    }
  }

  // A row that lanes draw from, and where the draws go.
  struct Lane {
    int64_t begin;
    int64_t place;
  };

  void draw_block(const Row* rows, int64_t count, int32_t* counts, Buffer<int64_t>& positions) {
    if (spec_.fanout == 0) {
      std::fill_n(counts, count, 0);
      return;
    }
    SimdRows simd_rows;
    std::array<Lane, kLanes> drawn;
    int num_drawn = 0;
    const int64_t first = positions.size();
    int64_t total = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = begin_of(rows[i]);
      const int64_t degree = rows[i].end - begin;
      const int64_t picks = pick_count(degree, spec_.fanout, spec_.replace);
      counts[i] = checked_count(picks);
      // Rows that are not drawn from by lanes are overwritten by the next.
      const uint64_t node = graph_.original_id(rows[i].row);
      const auto lane = static_cast<std::size_t>(num_drawn);
      simd_rows.node_low[lane] = static_cast<uint32_t>(node);
      simd_rows.node_high[lane] = static_cast<uint32_t>(node >> 32);
      simd_rows.tree[lane] = rows[i].tree;
      simd_rows.degree[lane] = static_cast<uint32_t>(degree);
      drawn[lane] = {begin, first + total};
      num_drawn += way_of(degree) == Way::kSimd;
      total += picks;
    }
    positions.resize(first + total);
    if (num_drawn > 0) draw_simd(simd_rows, drawn.data(), num_drawn, positions.data());
    if (num_drawn < count) draw_others(rows, count, counts, positions.data() + first);
  }

  void draw_simd(SimdRows& simd_rows, const Lane* drawn, int num_drawn, int64_t* positions) {
    const int fanout = static_cast<int>(spec_.fanout);
    for (int lane = num_drawn; lane < kLanes; ++lane) {
      simd_rows.node_low[lane] = simd_rows.node_high[lane] = simd_rows.tree[lane] = 0;
      simd_rows.degree[lane] = static_cast<uint32_t>(fanout) + 1;
    }
    pick_simd_(spec_.key, simd_rows, fanout, spec_.replace, picks_.data());
    for (int lane = 0; lane < num_drawn; ++lane) {
      int64_t* const out = positions + drawn[lane].place;
      for (int i = 0; i < fanout; ++i) {
        out[i] = drawn[lane].begin + picks_[static_cast<std::size_t>(i * kLanes + lane)];
      }
    }
  }

  void draw_others(const Row* rows, int64_t count, const int32_t* counts, int64_t* out) {
    for (int64_t i = 0; i < count; out += counts[i++]) {
      const int64_t begin = begin_of(rows[i]);
      const int64_t degree = rows[i].end - begin;
      const Way way = way_of(degree);
      if (way == Way::kAll) {
        for (int64_t j = 0; j < degree; ++j) out[j] = begin + j;
      } else if (way == Way::kAlone) {
        const NodeDraws draws{spec_.key, graph_.original_id(rows[i].row), rows[i].tree};
        picker_.pick(draws, degree, counts[i], spec_.replace, out);
        for (int64_t j = 0; j < counts[i]; ++j) out[j] += begin;
      }
    }
  }

  enum class Way { kAll, kSimd, kAlone };

  Way way_of(int64_t degree) const {
    if (degree == 0 || takes_all(degree, spec_.fanout, spec_.replace)) return Way::kAll;
    const bool few = spec_.fanout <= kScanLimit && degree <= static_cast<int64_t>(kWideDegree);
    return few ? Way::kSimd : Way::kAlone;
  }

  int64_t begin_of(const Row& row) const {
    if (!spec_.last || spec_.fanout < 0) return row.begin;
    return std::max(row.begin, row.end - spec_.fanout);
  }

  const CsrView<Ptr, Col>& graph_;
  const HopSpec& spec_;
  const PickFunction pick_simd_ = simd_pickers().front().pick;
  RowFinder<Ptr, Col> finder_;
  UniformPicker picker_;
  ConstrainedDrawer<Ptr, Col> constrained_;
  LaborDrawer<Ptr, Col> labor_;
  alignas(64) std::array<uint32_t, kScanLimit * kLanes> picks_;
};

}  // namespace khop::cpu
