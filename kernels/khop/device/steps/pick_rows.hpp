// Draws from a frontier, a row an item: which edges each row contributes to a hop.
//
// The same words, bounds and order of picks as on the CPU, so the same edges. Picks of a row lie
// one after the other, `fanout` places apart from the next row's; rows that are taken whole need no
// list of them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "khop/core/labor.hpp"
#include "khop/core/pick.hpp"
#include "khop/core/weights.hpp"
#include "khop/device/steps/batch_view.hpp"
#include "khop/device/steps/candidates.hpp"

namespace khop::device {

// Memory to work in: so many words for each thread, and more, behind them, for rows that need more.
struct Scratch {
  uint64_t* words;
  int64_t words_per_thread;
  int64_t shared;    // where the rest begins
  int64_t capacity;  // of all
  int64_t* used;     // of the rest, on the device

  // Null if there is not enough; how much was wanted is known from `used`.
  KHOP_HD uint64_t* take(int64_t thread, int64_t count) const {
    if (count <= words_per_thread) return words + thread * words_per_thread;
    const int64_t first = shared + atomic_add(used, count);
    return first + count <= capacity ? words + first : nullptr;
  }
};

// A set of positions picked before, in memory that must hold `words_for(count)` words.
class PickedSet {
 public:
  static KHOP_HD int64_t words_for(int64_t count) {
    int64_t words = 8;
    while (words < 2 * count) words *= 2;
    return words;
  }

  KHOP_HD PickedSet(uint64_t* words, int64_t count)
      : words_(words), mask_(static_cast<uint64_t>(words_for(count)) - 1) {
    for (uint64_t i = 0; i <= mask_; ++i) words_[i] = kNone;
  }
  KHOP_HD bool contains(int64_t position) const { return words_[find(position)] != kNone; }
  KHOP_HD void add(int64_t position) { words_[find(position)] = static_cast<uint64_t>(position); }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  KHOP_HD uint64_t find(int64_t position) const {
    const auto value = static_cast<uint64_t>(position);
    uint64_t i = hash_id(value) >> 32 & mask_;
    while (words_[i] != kNone && words_[i] != value) i = (i + 1) & mask_;
    return i;
  }

  uint64_t* words_;
  uint64_t mask_;
};

// The rows of a hop: how many edges each contributes, and where they are.
struct HopRows {
  int64_t* begins;  // picked, listed: first of its places in `picks`; whole: its first edge;
                    // filtered: the first of its places in `kept`
  int64_t* picks;   // edges; of listed rows ids of nodes
  const int64_t* kept;
  const int64_t* offsets;  // where the edges of each row stand among the hop's: sums of the counts
  const float* values;     // of edges, at their places in `picks` or `kept`; null: they have none

  // The j-th edge of a row. Of a listed one: a node.
  KHOP_HD int64_t edge(RowMode mode, int64_t row, int64_t j) const {
    const int64_t place = begins[row] + j;
    if (mode == RowMode::kWhole) return place;
    return mode == RowMode::kFiltered ? kept[place] : picks[place];
  }
};

// What a draw's random numbers belong to. A kernel each, as LABOR's takes more registers.
struct KeyedByRow {};       // HopMethod::kNeighbor
struct KeyedByNeighbor {};  // HopMethod::kLabor

// One row of an edge type that picks.
template <class Keys>
class RowPicker {
 public:
  KHOP_HD RowPicker(const RelationView& relation, const HopOptions& options, const Scratch& scratch,
                    int64_t thread)
      : relation_(relation), options_(options), scratch_(scratch), thread_(thread) {}

  // Returns how many edges it has written to `out`.
  KHOP_HD int64_t pick(const Row& row, int64_t* out) const {
    const ExcludedPositions all_excluded = relation_.excluded.of(row);
    const Edges edges(relation_.graph, row, all_excluded, options_.weighted);
    const int64_t begin = options_.last ? begin_of_last(row, all_excluded, edges) : row.begin;
    const ExcludedPositions left_out = all_excluded.from(begin);
    const int64_t degree = row.end - begin - left_out.count;
    int64_t count = 0;
    if (takes_all(degree, options_.fanout, options_.replace)) {
      edges.take(begin, [&](int64_t edge) { out[count++] = edge; });
      return count;
    }
    if constexpr (std::is_same_v<Keys, KeyedByNeighbor>) {
      uint64_t* const words =
          scratch_.take(thread_, labor_words(options_.fanout, options_.weighted));
      if (words == nullptr) return 0;
      return pick_labor(relation_.graph, row, all_excluded, options_.key, options_.fanout,
                        options_.weighted, words, out);
    } else {
      if (options_.weighted) {
        return begin < row.end ? pick_by_weight(row, begin, edges, left_out, out) : 0;
      }
      return degree > 0 ? pick_uniformly(row, begin, degree, left_out, out) : 0;
    }
  }

 private:
  using Edges = EligibleEdges<DeviceCsr>;

  KHOP_HD int64_t begin_of_last(const Row& row, const ExcludedPositions& all_excluded,
                                const Edges& edges) const {
    if (options_.weighted || all_excluded.count > 0) return edges.begin_of_last(options_.fanout);
    return row.end - options_.fanout > row.begin ? row.end - options_.fanout : row.begin;
  }

  KHOP_HD NodeDraws draws_of(const Row& row) const {
    return {options_.key, relation_.graph.original_id(row.row), row.tree};
  }

  KHOP_HD int64_t pick_uniformly(const Row& row, int64_t begin, int64_t degree,
                                 const ExcludedPositions& left_out, int64_t* out) const {
    const NodeDraws draws = draws_of(row);
    const int64_t count = options_.fanout;
    if (options_.replace) {
      pick_with_replacement(draws, degree, count, out);
    } else if (count <= kRegisterPicks && degree <= int64_t{0xFFFFFFFF}) {
      pick_few_without_replacement(draws, degree, count, out);
    } else if (count <= kScanLimit && degree <= int64_t{0xFFFFFFFF}) {
      uint32_t picked[kScanLimit];
      pick_without_replacement_scan(draws, degree, count, picked);
      for (int64_t j = 0; j < count; ++j) out[j] = picked[j];
    } else if (!pick_many(draws, degree, out)) {
      return 0;
    }
    for (int64_t j = 0; j < count; ++j) out[j] = left_out.step_over(begin + out[j]);
    return count;
  }

  KHOP_HD bool pick_many(const NodeDraws& draws, int64_t degree, int64_t* out) const {
    uint64_t* const words = scratch_.take(thread_, PickedSet::words_for(options_.fanout));
    if (words == nullptr) return false;
    PickedSet seen(words, options_.fanout);
    pick_without_replacement(
        draws, degree, options_.fanout, out,
        [&seen](int64_t, int64_t position) { return seen.contains(position); },
        [&seen](int64_t position) { seen.add(position); });
    return true;
  }

  // Gaps: a place for each excluded position and, without replacement, for each pick but the last.
  KHOP_HD int64_t pick_by_weight(const Row& row, int64_t begin, const Edges& edges,
                                 const ExcludedPositions& left_out, int64_t* out) const {
    const WeightedRow weights = edges.weights();
    const uint64_t base = weights.before(begin - row.begin);
    uint64_t total = weights.sums[row.end - 1 - row.begin] - base;
    const int64_t capacity = left_out.count + (options_.replace ? 0 : options_.fanout);
    uint64_t* const words = capacity > 0 ? scratch_.take(thread_, 2 * capacity) : nullptr;
    if (capacity > 0 && words == nullptr) return 0;
    Gaps gaps(words, words + capacity, capacity, 0);
    uint64_t closed = 0;
    for (int64_t h = 0; h < left_out.count; ++h) {
      const int64_t position = left_out.edges[h] - row.begin;
      const uint64_t length = weights.weight(position);
      gaps.close_last(weights.before(position) - base, length, closed);
      closed += length;
    }
    total -= closed;
    DrawStream stream(draws_of(row), true);
    int64_t count = 0;
    for (; count < options_.fanout && total > 0; ++count) {
      const uint64_t point = stream.below(total);
      const uint64_t place = base + gaps.place(point);
      const int64_t position = weights.find(place);
      out[count] = row.begin + position;
      if (options_.replace || count + 1 == options_.fanout) continue;
      const uint64_t before = weights.before(position);
      const uint64_t length = weights.sums[position] - before;
      gaps.close(point, place - base, before - base, length);
      total -= length;
    }
    return count;
  }

  const RelationView& relation_;
  const HopOptions& options_;
  const Scratch& scratch_;
  int64_t thread_;
};

// What a row contributes; a sum over them gives the offsets.
template <class Keys>
struct PickRows {
  BatchView batch;
  const HopStep* steps;
  FilteredRows filtered;
  Scratch scratch;
  HopRows rows;

  KHOP_HD int64_t operator()(int64_t i, int64_t thread) const {
    const int64_t k = batch.relation_of_row(i);
    const HopStep& step = steps[k];
    if (step.mode == RowMode::kFiltered) {
      rows.begins[i] = filtered.first_kept(i);
      return filtered.first_kept(i + 1) - rows.begins[i];
    }
    const RelationView& relation = batch.relations[k];
    const int64_t place = i - batch.row_starts[k];
    const Row row = find_row(relation.graph, batch.frontier_of(relation), place, batch.error);
    if (step.mode == RowMode::kWhole) {
      rows.begins[i] = row.begin;
      return row.end - row.begin;
    }
    const int64_t first = batch.pick_starts[k] + place * step.options.fanout;
    rows.begins[i] = first;
    return RowPicker<Keys>(relation, step.options, scratch, thread).pick(row, rows.picks + first);
  }
};

}  // namespace khop::device
