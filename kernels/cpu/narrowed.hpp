// Draws from rows of which pairs are excluded, or by weight.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "buffer.hpp"
#include "exclude.hpp"
#include "khop/csr.hpp"
#include "khop/pick.hpp"
#include "khop/weights.hpp"
#include "rows.hpp"
#include "uniform.hpp"
#include "weighted_turns.hpp"

namespace khop {

// What one row contributes to a batch, as stored. Throws std::length_error if it is too much.
inline int32_t checked_count(int64_t picks) {
  if (picks > std::numeric_limits<int32_t>::max()) {
    throw std::length_error("a row contributes more than 2^31 - 1 neighbours to one batch");
  }
  return static_cast<int32_t>(picks);
}

template <class Ptr, class Col>
class NarrowedDrawer {
 public:
  NarrowedDrawer(const CsrView<Ptr, Col>& graph, const HopSpec& spec)
      : graph_(graph), spec_(spec) {}

  // Appends positions drawn from a row some of whose edges are excluded.
  void draw_uniformly(const Row& row, const PairSet::Span& excluded, Buffer<int64_t>& positions) {
    if (spec_.fanout == 0) return;
    holes_.clear();
    find_holes(row, excluded);
    const Eligible rest = eligible(row);
    const int64_t degree = row.end - rest.begin - num_holes(rest);
    if (takes_all(degree, spec_.fanout, spec_.replace)) {
      take_eligible(row, rest, positions);
    } else if (degree > 0) {
      int64_t* out = positions.extend(spec_.fanout);
      picker_.pick(draws_of(row), degree, spec_.fanout, spec_.replace, out);
      for (int64_t j = 0; j < spec_.fanout; ++j) {
        out[j] = beside_holes(rest.begin + out[j], rest.first_hole);
      }
    }
  }

  // Appends positions drawn by weight from a block of rows.
  void draw_by_weight(const Row* rows, int64_t count, int32_t* counts, Buffer<int64_t>& positions) {
    if (spec_.fanout == 0) {
      std::fill_n(counts, count, 0);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      if (rows[i].begin == rows[i].end) continue;
      __builtin_prefetch(&graph_.weight_sums[rows[i].end - 1]);
      // Only rows that are taken whole, or from within, are read from the beginning.
      const bool from_begin = spec_.last || rows[i].end - rows[i].begin <= spec_.fanout;
      if (from_begin) __builtin_prefetch(&graph_.weight_sums[rows[i].begin]);
    }
    turns_.begin(spec_.fanout, spec_.replace);
    taken_.clear();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t before = taken_.size();
      const bool drawn = begin_row(rows[i]);
      counts[i] = drawn ? -1 : checked_count(taken_.size() - before);
    }
    turns_.draw();
    // In the order of rows.
    const int64_t* taken = taken_.data();
    int64_t turn = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (counts[i] < 0) {
        counts[i] = checked_count(turns_.num_picked(turn));
        std::copy_n(turns_.picked(turn++), counts[i], positions.extend(counts[i]));
      } else {
        std::copy_n(taken, counts[i], positions.extend(counts[i]));
        taken += counts[i];
      }
    }
  }

 private:
  // What is left of a row: its edges from `begin` on, but for the holes from `first_hole` on.
  struct Eligible {
    int64_t begin;
    std::size_t first_hole;
  };

  Eligible eligible(const Row& row) const {
    const int64_t begin = spec_.last && spec_.fanout > 0 ? begin_of_last(row) : row.begin;
    const auto hole = std::lower_bound(holes_.begin(), holes_.end(), begin);
    return {begin, static_cast<std::size_t>(hole - holes_.begin())};
  }

  int64_t num_holes(const Eligible& rest) const {
    return static_cast<int64_t>(holes_.size() - rest.first_hole);
  }

  NodeDraws draws_of(const Row& row) const {
    return {spec_.key, graph_.original_id(row.row), row.tree};
  }

  // Reads the row once: for a few neighbours block by block, without a branch an entry, so that
  // entries are compared many at a time.
  void find_holes(const Row& row, const PairSet::Span& excluded) {
    constexpr std::ptrdiff_t kFew = 8;
    if (excluded.end - excluded.begin > kFew) {
      for (int64_t e = row.begin; e < row.end; ++e) {
        if (excluded.contains(static_cast<int64_t>(graph_.indices[e]))) holes_.push_back(e);
      }
      return;
    }
    constexpr int64_t kBlock = 64;
    for (int64_t first = row.begin; first < row.end; first += kBlock) {
      const int64_t last = std::min(first + kBlock, row.end);
      unsigned found = 0;
      for (const PairSet::Pair* pair = excluded.begin; pair != excluded.end; ++pair) {
        const Col wanted = static_cast<Col>(pair->neighbor);
        for (int64_t e = first; e < last; ++e) {
          found |= static_cast<unsigned>(graph_.indices[e] == wanted);
        }
      }
      if (found == 0) continue;
      for (int64_t e = first; e < last; ++e) {
        if (excluded.contains(static_cast<int64_t>(graph_.indices[e]))) holes_.push_back(e);
      }
    }
  }

  // Where an edge lies if the holes from `first_hole` on are not counted.
  int64_t beside_holes(int64_t edge, std::size_t first_hole) const {
    std::size_t low = first_hole;
    std::size_t high = holes_.size();
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (holes_[middle] - static_cast<int64_t>(middle - first_hole) <= edge) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return edge + static_cast<int64_t>(low - first_hole);
  }

  WeightedRow weights_of(const Row& row) const {
    return {graph_.weight_sums + row.begin, graph_.weight_guide + row.begin,
            row.row_end - row.begin};
  }

  bool has_weight(const Row& row, int64_t edge) const {
    return !spec_.weighted || weights_of(row).weight(edge - row.begin) > 0;
  }

  // First edge of the last `fanout` that may be drawn.
  int64_t begin_of_last(const Row& row) const {
    int64_t left = spec_.fanout;
    int64_t edge = row.end;
    std::size_t hole = holes_.size();
    while (edge > row.begin && left > 0) {
      --edge;
      if (hole > 0 && holes_[hole - 1] == edge) {
        --hole;
      } else if (has_weight(row, edge)) {
        --left;
      }
    }
    return edge;
  }

  void take_eligible(const Row& row, Eligible rest, Buffer<int64_t>& positions) {
    for (int64_t edge = rest.begin; edge < row.end; ++edge) {
      if (rest.first_hole < holes_.size() && holes_[rest.first_hole] == edge) {
        ++rest.first_hole;
      } else if (has_weight(row, edge)) {
        positions.push_back(edge);
      }
    }
  }

  // Takes a row whole, or prepares drawing from it, which it returns.
  bool begin_row(const Row& row) {
    holes_.clear();
    if (spec_.excluded != nullptr) {
      const PairSet::Span excluded = spec_.excluded->of(row.id);
      if (!excluded.empty()) find_holes(row, excluded);
    }
    const Eligible rest = eligible(row);
    if (takes_all(row.end - rest.begin - num_holes(rest), spec_.fanout, spec_.replace)) {
      take_eligible(row, rest, taken_);
      return false;
    }
    if (rest.begin == row.end) return false;
    turns_.add(weights_of(row), row.begin, {rest.begin, row.end}, holes_.data() + rest.first_hole,
               num_holes(rest), draws_of(row));
    return true;
  }

  const CsrView<Ptr, Col>& graph_;
  const HopSpec& spec_;
  UniformPicker picker_;
  std::vector<int64_t> holes_;  // excluded edges of the row at hand, ascending
  WeightedTurns turns_;
  Buffer<int64_t> taken_;  // of rows that are taken whole
};

}  // namespace khop
