// Draws from single rows: which positions of a row one hop takes.
//
// What may be drawn of a row is narrowed in steps: to what lies before the seed's time, less pairs
// that the batch excludes, less weights of zero, to the last k of it if the latest are asked for.
// Most rows need none of this and take the short way.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "buffer.hpp"
#include "exclude.hpp"
#include "khop/csr.hpp"
#include "khop/pick.hpp"
#include "khop/weights.hpp"

namespace khop {

// How one hop over one edge type is drawn.
struct HopSpec {
  int64_t fanout;  // < 0: all neighbours
  bool replace;
  uint64_t key;  // step_key(...)
  bool weighted = false;
  bool last = false;                  // the latest `fanout` neighbours instead of random ones
  const PairSet* excluded = nullptr;  // (row, neighbour) pairs
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

// Positions already picked in a row too wide to scan.
class PositionSet {
 public:
  void reset(int64_t count) {
    int bits = 8;
    while ((int64_t{1} << bits) < 2 * count) ++bits;
    bits_ = bits;
    slots_.clear();
    slots_.resize(int64_t{1} << bits);
    std::fill_n(slots_.data(), slots_.size(), int64_t{-1});
  }
  bool contains(int64_t position) const { return slots_[find(position)] == position; }
  void add(int64_t position) { slots_[find(position)] = position; }

 private:
  int64_t find(int64_t position) const {
    const int64_t mask = slots_.size() - 1;
    int64_t slot =
        static_cast<int64_t>(slot_index(hash_id(static_cast<uint64_t>(position)), bits_));
    while (slots_[slot] != -1 && slots_[slot] != position) slot = (slot + 1) & mask;
    return slot;
  }

  int bits_ = 0;
  Buffer<int64_t> slots_;
};

template <class Ptr, class Col>
class RowDrawer {
 public:
  RowDrawer(const CsrView<Ptr, Col>& graph, const HopSpec& spec) : graph_(graph), spec_(spec) {
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

  void prefetch_rows(const int64_t* ids, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = row_of(ids[i]);
      if (row < 0 || row >= graph_.num_rows) continue;
      __builtin_prefetch(&graph_.indptr[row]);
      if (graph_.row_id_width != 0) {
        __builtin_prefetch(static_cast<const char*>(graph_.row_ids) + row * graph_.row_id_width);
      }
    }
  }

  // What draws from `count` rows will look at first beside the columns: they wait for one row while
  // the others are on their way. Of long rows that is a few lines at their ends.
  void prefetch_extras(const int64_t* ids, int64_t count) const {
    if (!spec_.weighted && graph_.times == nullptr) return;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = row_of(ids[i]);
      if (row < 0 || row >= graph_.num_rows) continue;
      const int64_t begin = static_cast<int64_t>(graph_.indptr[row]);
      const int64_t end = static_cast<int64_t>(graph_.indptr[row + 1]);
      if (!graph_.row_is_sound(begin, end) || begin == end) continue;
      if (spec_.weighted) {
        prefetch_range(graph_.weight_sums, begin, end);
        prefetch_range(graph_.weight_guide, begin, end);
      }
      if (graph_.times != nullptr) prefetch_range(graph_.times, begin, end);
    }
  }

  // Appends the picked edge positions of `count` rows and prefetches their columns.
  void draw(const RowSet& rows, int64_t count, int32_t* counts, Buffer<int64_t>& positions) {
    constexpr int64_t kAhead = 16;
    prefetch_extras(rows.ids, std::min(kAhead, count));
    for (int64_t i = 0; i < count; ++i) {
      if (i % kAhead == 0 && i + kAhead < count) {
        prefetch_extras(rows.ids + i + kAhead, std::min(kAhead, count - i - kAhead));
      }
      const Row row = find_row(rows, i);
      const int64_t before = positions.size();
      const PairSet::Span excluded =
          spec_.excluded == nullptr ? PairSet::Span{nullptr, nullptr} : spec_.excluded->of(row.id);
      if (spec_.weighted || !excluded.empty()) {
        draw_narrowed(row, excluded, positions);
      } else {
        draw_plainly(row, positions);
      }
      const int64_t picks = positions.size() - before;
      if (picks > std::numeric_limits<int32_t>::max()) {
        throw std::length_error("a row contributes more than 2^31 - 1 neighbours to one batch");
      }
      counts[i] = static_cast<int32_t>(picks);
    }
  }

  // A row, as far as its tree may see it: edges [begin, end). The whole row ends at `row_end`.
  struct Row {
    int64_t id;
    int64_t row;
    uint32_t tree;
    int64_t begin;
    int64_t end;
    int64_t row_end;
  };

  // Ids come from files and callers: the difference may be beyond 64 bits, and wraps.
  int64_t row_of(int64_t id) const {
    return static_cast<int64_t>(static_cast<uint64_t>(id) -
                                static_cast<uint64_t>(graph_.first_row));
  }

  Row find_row(const RowSet& rows, int64_t i) const {
    const int64_t id = rows.ids[i];
    const int64_t row = row_of(id);
    if (row < 0 || row >= graph_.num_rows) throw_no_such_row(id);
    const int64_t begin = static_cast<int64_t>(graph_.indptr[row]);
    const int64_t end = static_cast<int64_t>(graph_.indptr[row + 1]);
    if (!graph_.row_is_sound(begin, end)) throw_unsound(row, begin, end);
    const uint32_t tree = rows.trees == nullptr ? 0 : static_cast<uint32_t>(rows.trees[i]);
    const bool timed = graph_.times != nullptr && rows.times != nullptr;
    const int64_t visible = timed ? graph_.visible_end(begin, end, rows.times[i]) : end;
    return {id, row, tree, begin, visible, end};
  }

 private:
  template <class T>
  static void prefetch_range(const T* values, int64_t begin, int64_t end) {
    constexpr int64_t kPerLine = 64 / sizeof(T);
    constexpr int64_t kMaxLines = 8;
    __builtin_prefetch(values + end - 1);
    const int64_t last = std::min(end, begin + kMaxLines * kPerLine);
    for (int64_t i = begin; i < last; i += kPerLine) __builtin_prefetch(values + i);
  }

  void draw_plainly(const Row& row, Buffer<int64_t>& positions) {
    int64_t begin = row.begin;
    if (spec_.last && spec_.fanout >= 0) begin = std::max(begin, row.end - spec_.fanout);
    const int64_t degree = row.end - begin;
    const int64_t picks = pick_count(degree, spec_.fanout, spec_.replace);
    if (picks == 0) return;
    int64_t* out = positions.extend(picks);
    if (takes_all(degree, spec_.fanout, spec_.replace)) {
      constexpr int64_t kPerLine = 64 / sizeof(Col);
      for (int64_t j = 0; j < picks; ++j) out[j] = begin + j;
      for (int64_t j = 0; j < picks; j += kPerLine) __builtin_prefetch(&graph_.indices[begin + j]);
      return;
    }
    pick_uniformly(row, degree, picks, out);
    for (int64_t j = 0; j < picks; ++j) {
      out[j] += begin;
      __builtin_prefetch(&graph_.indices[out[j]]);
    }
  }

  NodeDraws draws_of(const Row& row) const {
    return {spec_.key, graph_.original_id(row.row), row.tree};
  }

  void pick_uniformly(const Row& row, int64_t degree, int64_t picks, int64_t* out) {
    const NodeDraws draws = draws_of(row);
    if (spec_.replace) {
      pick_with_replacement(draws, degree, picks, out);
    } else if (picks <= kScanLimit && degree <= std::numeric_limits<uint32_t>::max()) {
      std::array<uint32_t, kScanLimit> picked;
      pick_without_replacement_scan(draws, degree, picks, picked.data());
      for (int64_t j = 0; j < picks; ++j) out[j] = picked[static_cast<std::size_t>(j)];
    } else {
      seen_.reset(picks);
      pick_without_replacement(
          draws, degree, picks, out,
          [this](int64_t, int64_t position) { return seen_.contains(position); },
          [this](int64_t position) { seen_.add(position); });
    }
  }

  // With exclusions or weights. Holes are the excluded edges, ascending.
  void draw_narrowed(const Row& row, const PairSet::Span& excluded, Buffer<int64_t>& positions) {
    if (spec_.fanout == 0) return;
    holes_.clear();
    if (!excluded.empty()) find_holes(row, excluded);
    const int64_t begin = spec_.last && spec_.fanout > 0 ? begin_of_last(row) : row.begin;
    const std::size_t first_hole = static_cast<std::size_t>(
        std::lower_bound(holes_.begin(), holes_.end(), begin) - holes_.begin());
    const int64_t degree = row.end - begin - static_cast<int64_t>(holes_.size() - first_hole);
    if (takes_all(degree, spec_.fanout, spec_.replace)) {
      take_eligible(row, begin, first_hole, positions);
    } else if (spec_.weighted) {
      pick_by_weight(row, begin, first_hole, positions);
    } else if (degree > 0) {
      int64_t* out = positions.extend(spec_.fanout);
      pick_uniformly(row, degree, spec_.fanout, out);
      for (int64_t j = 0; j < spec_.fanout; ++j) {
        out[j] = beside_holes(begin + out[j], first_hole);
        __builtin_prefetch(&graph_.indices[out[j]]);
      }
    }
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

  void take_eligible(const Row& row, int64_t begin, std::size_t hole, Buffer<int64_t>& positions) {
    for (int64_t edge = begin; edge < row.end; ++edge) {
      if (hole < holes_.size() && holes_[hole] == edge) {
        ++hole;
      } else if (has_weight(row, edge)) {
        __builtin_prefetch(&graph_.indices[edge]);
        positions.push_back(edge);
      }
    }
  }

  void pick_by_weight(const Row& row, int64_t begin, std::size_t hole, Buffer<int64_t>& positions) {
    if (begin == row.end) return;
    const WeightedRow weights = weights_of(row);
    const uint64_t base = weights.before(begin - row.begin);
    uint64_t total = weights.sums[row.end - 1 - row.begin] - base;
    gaps_.clear();
    for (; hole < holes_.size(); ++hole) total -= add_gap(weights, holes_[hole] - row.begin, base);
    DrawStream stream(draws_of(row), true);
    if (spec_.replace) {
      if (total > 0) pick_again_and_again(row, weights, base, total, stream, positions);
      return;
    }
    for (int64_t j = 0; j < spec_.fanout && total > 0; ++j) {
      const uint64_t point = stream.below(total);
      const int64_t position =
          weights.find(base + step_over(gaps_.data(), static_cast<int64_t>(gaps_.size()), point));
      total -= add_gap(weights, position, base);
      __builtin_prefetch(&graph_.indices[row.begin + position]);
      positions.push_back(row.begin + position);
    }
  }

  // With replacement draws do not depend on one another: they look into the guide together.
  void pick_again_and_again(const Row& row, const WeightedRow& weights, uint64_t base,
                            uint64_t total, DrawStream& stream, Buffer<int64_t>& positions) {
    constexpr int64_t kTogether = 16;
    std::array<uint64_t, kTogether> points;
    for (int64_t first = 0; first < spec_.fanout; first += kTogether) {
      const int64_t count = std::min(kTogether, spec_.fanout - first);
      for (int64_t j = 0; j < count; ++j) {
        const uint64_t point =
            base + step_over(gaps_.data(), static_cast<int64_t>(gaps_.size()), stream.below(total));
        points[static_cast<std::size_t>(j)] = point;
        __builtin_prefetch(&weights.guide[guide_bucket(point, weights.count)]);
      }
      for (int64_t j = 0; j < count; ++j) {
        const int64_t bucket = guide_bucket(points[static_cast<std::size_t>(j)], weights.count);
        __builtin_prefetch(
            &weights.sums[std::min<int64_t>(weights.guide[bucket], weights.count - 1)]);
      }
      for (int64_t j = 0; j < count; ++j) {
        const int64_t position = weights.find(points[static_cast<std::size_t>(j)]);
        __builtin_prefetch(&graph_.indices[row.begin + position]);
        positions.push_back(row.begin + position);
      }
    }
  }

  uint64_t add_gap(const WeightedRow& weights, int64_t position, uint64_t base) {
    const Gap gap{weights.before(position) - base, weights.weight(position)};
    const auto place =
        std::upper_bound(gaps_.begin(), gaps_.end(), gap.start,
                         [](uint64_t start, const Gap& other) { return start < other.start; });
    gaps_.insert(place, gap);
    return gap.length;
  }

  [[noreturn]] void throw_no_such_row(int64_t id) const {
    throw std::out_of_range("node " + std::to_string(id) + " is not one of the graph's rows " +
                            std::to_string(graph_.first_row) + " to " +
                            std::to_string(graph_.first_row + graph_.num_rows - 1));
  }
  [[noreturn]] void throw_unsound(int64_t row, int64_t begin, int64_t end) const {
    throw std::runtime_error("row pointers are corrupt: row " + std::to_string(row) +
                             " spans edges " + std::to_string(begin) + " to " +
                             std::to_string(end) + " of " + std::to_string(graph_.num_edges));
  }

  const CsrView<Ptr, Col>& graph_;
  const HopSpec& spec_;
  PositionSet seen_;
  std::vector<int64_t> holes_;
  std::vector<Gap> gaps_;
};

}  // namespace khop
