// Draws of LABOR from one row after the other.
//
// Every neighbour's variate is a block of Philox: sixteen are made at a time (simd.hpp). Of a long
// row only those below a limit are kept, under which some more than the fan-out are expected: what
// is read and written for each neighbour does not depend on its variate, and few are compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "khop/core/csr.hpp"
#include "khop/core/eligible.hpp"
#include "khop/core/labor.hpp"
#include "khop/core/pick.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/excluded_finder.hpp"
#include "khop/cpu/prefetch.hpp"
#include "khop/cpu/rows.hpp"
#include "khop/cpu/simd.hpp"

namespace khop::cpu {

template <class Ptr, class Col>
class LaborDrawer {
 public:
  LaborDrawer(const CsrView<Ptr, Col>& graph, const HopSpec& spec)
      : graph_(graph), spec_(spec), finder_(graph, spec.stop) {
    // More than two standard deviations above the fan-out: of a hundred rows one has too few.
    const double fanout = static_cast<double>(std::max<int64_t>(spec.fanout, 0));
    expected_ = fanout + 2.5 * std::sqrt(fanout) + 1.0;
  }

  // Appends the positions drawn from a row; returns how many.
  int64_t draw(const Row& row, Buffer<int64_t>& positions) {
    if (spec_.fanout == 0) return 0;
    const int64_t before = positions.size();
    finder_.find(row, spec_.excluded_of(row.id));
    const ExcludedPositions excluded_positions = finder_.positions();
    if (takes_all(row.end - row.begin - excluded_positions.count, spec_.fanout, false)) {
      const EligibleEdges<CsrView<Ptr, Col>> edges(graph_, row, excluded_positions, spec_.weighted);
      edges.take(row.begin, [&](int64_t edge) { positions.push_back(edge); });
      return positions.size() - before;
    }
    int64_t count = 0;
    if (spec_.weighted) {
      words_.resize(labor_words(spec_.fanout, true));
      int64_t* const out = positions.extend(spec_.fanout);
      count = pick_labor<true>(graph_, row, excluded_positions, spec_.key, spec_.fanout,
                               words_.data(), out);
    } else {
      pick_smallest(row, excluded_positions, positions);
      count = spec_.fanout;
    }
    positions.resize(before + count);
    return count;
  }

  // Fetches what a row's draw reads first; the rest follows by itself.
  void prefetch(const Row& row) const {
    const int width =
        graph_.neighbor_id_width == 0 ? static_cast<int>(sizeof(Col)) : graph_.neighbor_id_width;
    const char* const ids = graph_.neighbor_id_width == 0
                                ? reinterpret_cast<const char*>(graph_.indices)
                                : static_cast<const char*>(graph_.neighbor_ids);
    const int64_t end = std::min(row.end, row.begin + kFetched / width);
    for (int64_t edge = row.begin; edge < end; edge += kLine / width) {
      prefetch_line(ids + edge * width);
    }
  }

 private:
  static constexpr int64_t kChunk = 1024;      // neighbours whose words are made in one call
  static constexpr int64_t kComparedAll = 96;  // candidates of which each is compared with all
  static constexpr int64_t kLine = 64;
  static constexpr int64_t kFetched = 8 * kLine;

  // As pick_labor<false>, of a row that is not taken whole; positions may grow by one too many.
  void pick_smallest(const Row& row, const ExcludedPositions& excluded_positions,
                     Buffer<int64_t>& positions) {
    const auto degree = static_cast<double>(row.end - row.begin - excluded_positions.count);
    find_below(row, excluded_positions,
               expected_ < degree ? static_cast<uint64_t>(std::ldexp(expected_ / degree, 64))
                                  : ~uint64_t{0});
    if (words_.size() < spec_.fanout) find_below(row, excluded_positions, ~uint64_t{0});
    const int64_t found = words_.size();
    const uint64_t largest = kth_smallest();
    // Of equal ones, which next to no row has, the first are taken.
    int64_t equal_left = spec_.fanout;
    for (int64_t i = 0; i < found; ++i) equal_left -= static_cast<int64_t>(words_[i] < largest);
    int64_t* out = positions.extend(spec_.fanout + 1);
    for (int64_t i = 0; i < found; ++i) {
      *out = edges_[i];
      const bool is_equal = words_[i] == largest;
      out += static_cast<int64_t>((words_[i] < largest) | (is_equal & (equal_left > 0)));
      equal_left -= static_cast<int64_t>(is_equal);
    }
  }

  // The fan-out's smallest of words_.
  uint64_t kth_smallest() {
    const int64_t found = words_.size();
    if (found <= kComparedAll) {
      std::fill_n(words_.extend(kLanes), kLanes, ~uint64_t{0});
      words_.resize(found);
      return simd_.kth(words_.data(), found, spec_.fanout);
    }
    sorted_.resize(found);
    std::copy_n(words_.data(), found, sorted_.data());
    std::nth_element(sorted_.data(), sorted_.data() + spec_.fanout - 1, sorted_.data() + found);
    return sorted_[spec_.fanout - 1];
  }

  // Sets words_ and edges_ to the row's edges whose variates are no larger than a limit.
  void find_below(const Row& row, const ExcludedPositions& excluded_positions, uint64_t limit) {
    words_.clear();
    edges_.clear();
    for (int64_t first = row.begin; first < row.end; first += kChunk) {
      check_stop(spec_.stop);
      const int64_t count = std::min(kChunk, row.end - first);
      const int64_t before = words_.size();
      uint64_t* const words = words_.extend(count + kLanes);
      int64_t* const edges = edges_.extend(count + kLanes);
      const int64_t found = before + append_below(row.tree, first, count, limit, words, edges);
      words_.resize(found);
      edges_.resize(found);
    }
    if (excluded_positions.count > 0) drop_excluded(excluded_positions);
  }

  void drop_excluded(const ExcludedPositions& excluded_positions) {
    int64_t left = 0;
    for (int64_t i = 0; i < edges_.size(); ++i) {
      if (excluded_positions.contains(edges_[i])) continue;
      words_[left] = words_[i];
      edges_[left++] = edges_[i];
    }
    words_.resize(left);
    edges_.resize(left);
  }

  // Of the neighbours of `count` edges, at most kChunk.
  int64_t append_below(uint32_t tree, int64_t first, int64_t count, uint64_t limit, uint64_t* words,
                       int64_t* edges) const {
    const int64_t rounded = (count + kLanes - 1) / kLanes * kLanes;
    const uint32_t* const ids = narrow_ids();
    if (ids != nullptr && first + rounded <= graph_.num_edges) {
      return simd_.below(spec_.key, tree, {ids + first, nullptr, count}, limit, first, words,
                         edges);
    }
    uint32_t low[kChunk];
    uint32_t high[kChunk];
    for (int64_t i = 0; i < rounded; ++i) {
      const uint64_t node = graph_.original_neighbor(first + std::min(i, count - 1));
      low[i] = static_cast<uint32_t>(node);
      high[i] = static_cast<uint32_t>(node >> 32);
    }
    return simd_.below(spec_.key, tree, {low, high, count}, limit, first, words, edges);
  }

  // Original ids of neighbours if they have 32 bits, else null.
  const uint32_t* narrow_ids() const {
    if (graph_.neighbor_id_width == 4) return static_cast<const uint32_t*>(graph_.neighbor_ids);
    if (graph_.neighbor_id_width == 0 && sizeof(Col) == 4) {
      return reinterpret_cast<const uint32_t*>(graph_.indices);
    }
    return nullptr;
  }

  const CsrView<Ptr, Col>& graph_;
  const HopSpec& spec_;
  const SimdPicker& simd_ = simd_pickers().front();
  double expected_;
  ExcludedFinder<Ptr, Col> finder_;
  Buffer<uint64_t> words_;  // of candidates of the row at hand, or of a heap
  Buffer<int64_t> edges_;   // of the same candidates, ascending
  Buffer<uint64_t> sorted_;
};

}  // namespace khop::cpu
