// Draws from a frontier, a row an item: which edges each row contributes to a hop.
//
// The same words, bounds and order of picks as on the CPU, so the same edges. A row's picks lie
// `fanout` places apart from the next row's; how many it made stands beside them.
#pragma once

#include <cstdint>

#include "khop/csr.hpp"
#include "khop/eligible.hpp"
#include "khop/parallel/backend.hpp"
#include "khop/pick.hpp"
#include "khop/weights.hpp"

namespace khop::parallel {

// The nodes of one type as a step sees them: keys by number, the frontier among them.
struct FrontierView {
  const int64_t* keys;
  const int64_t* begin;       // first number, on the device
  const int64_t* tree_times;  // null: no times
  int id_bits;
  bool disjoint;

  KHOP_HD int64_t id_of(int64_t key) const {
    return disjoint ? key & static_cast<int64_t>((uint64_t{1} << id_bits) - 1) : key;
  }
  KHOP_HD int64_t tree_of(int64_t key) const {
    return disjoint ? static_cast<int64_t>(static_cast<uint64_t>(key) >> id_bits) : 0;
  }
};

// Finds the i-th row of a frontier. A row that cannot be used is reported, and empty.
template <class Ptr, class Col>
KHOP_HD Row find_row(const CsrView<Ptr, Col>& graph, const FrontierView& frontier, int64_t i,
                     Fault* fault) {
  const int64_t key = frontier.keys[*frontier.begin + i];
  const int64_t id = frontier.id_of(key);
  const int64_t tree = frontier.tree_of(key);
  Row row{id, 0, static_cast<uint32_t>(tree), 0, 0, 0};
  const int64_t place = graph.row_of(id);
  if (place < 0 || place >= graph.num_rows) {
    fault->report(Fault::kNoSuchRow, id);
    return row;
  }
  const auto begin = static_cast<int64_t>(graph.indptr[place]);
  const auto end = static_cast<int64_t>(graph.indptr[place + 1]);
  if (!graph.row_is_sound(begin, end)) {
    fault->report(Fault::kCorruptRow, place);
    return row;
  }
  row.row = place;
  row.begin = begin;
  row.end = row.row_end = end;
  if (graph.times != nullptr && frontier.tree_times != nullptr) {
    row.end = graph.visible_end(begin, end, frontier.tree_times[tree]);
  }
  return row;
}

// All excluded edges of an edge type, ascending; rows are stretches of them.
struct HoleList {
  const int64_t* edges;  // null: none
  const int64_t* count;  // on the device

  KHOP_HD Holes of(const Row& row) const {
    if (edges == nullptr) return {nullptr, 0};
    const int64_t first = first_not_below(edges, *count, row.begin);
    return {edges + first, first_not_below(edges, *count, row.end) - first};
  }
};

// How a hop over one edge type is drawn.
struct PickSpec {
  int64_t fanout;
  bool replace;
  bool weighted;
  bool last;
  const uint64_t* key;  // on the device
};

// Memory to work in: so many words for each row, and more, behind them, for rows that need more.
struct Scratch {
  uint64_t* words;
  int64_t words_per_row;
  int64_t shared;    // where the rest begins
  int64_t capacity;  // of all
  int64_t* used;     // of the rest, on the device

  // Null if there is not enough; how much was wanted is known from `used`.
  KHOP_HD uint64_t* take(int64_t row, int64_t count) const {
    if (count <= words_per_row) return words + row * words_per_row;
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

template <class Ptr, class Col>
struct PickRows {
  CsrView<Ptr, Col> graph;
  FrontierView frontier;
  HoleList holes;
  PickSpec spec;
  Scratch scratch;
  Fault* fault;
  int64_t* picks;   // `fanout` places a row
  int32_t* counts;  // a row each

  KHOP_HD void operator()(int64_t i) const {
    const Row row = find_row(graph, frontier, i, fault);
    const Holes all_holes = holes.of(row);
    int64_t* const out = picks + i * spec.fanout;
    const EligibleEdges<Ptr, Col> edges(graph, row, all_holes, spec.weighted);
    const int64_t begin = spec.last ? begin_of_last(row, all_holes, edges) : row.begin;
    const Holes left_out = all_holes.from(begin);
    const int64_t degree = row.end - begin - left_out.count;
    int64_t count = 0;
    if (takes_all(degree, spec.fanout, spec.replace)) {
      edges.take(begin, [&](int64_t edge) { out[count++] = edge; });
    } else if (degree > 0 || (spec.weighted && begin < row.end)) {
      count = spec.weighted ? pick_by_weight(i, row, begin, edges, left_out, out)
                            : pick_uniformly(i, row, begin, degree, left_out, out);
    }
    counts[i] = static_cast<int32_t>(count);
  }

 private:
  KHOP_HD int64_t begin_of_last(const Row& row, const Holes& all_holes,
                                const EligibleEdges<Ptr, Col>& edges) const {
    if (spec.weighted || all_holes.count > 0) return edges.begin_of_last(spec.fanout);
    return row.end - spec.fanout > row.begin ? row.end - spec.fanout : row.begin;
  }

  KHOP_HD NodeDraws draws_of(const Row& row) const {
    return {*spec.key, graph.original_id(row.row), row.tree};
  }

  KHOP_HD int64_t pick_uniformly(int64_t i, const Row& row, int64_t begin, int64_t degree,
                                 const Holes& left_out, int64_t* out) const {
    const NodeDraws draws = draws_of(row);
    const int64_t count = spec.fanout;
    if (spec.replace) {
      pick_with_replacement(draws, degree, count, out);
    } else if (count <= kScanLimit && degree <= int64_t{0xFFFFFFFF}) {
      uint32_t picked[kScanLimit];
      pick_without_replacement_scan(draws, degree, count, picked);
      for (int64_t j = 0; j < count; ++j) out[j] = picked[j];
    } else if (!pick_many(i, draws, degree, out)) {
      return 0;
    }
    for (int64_t j = 0; j < count; ++j) out[j] = left_out.step_over(begin + out[j]);
    return count;
  }

  KHOP_HD bool pick_many(int64_t i, const NodeDraws& draws, int64_t degree, int64_t* out) const {
    uint64_t* const words = scratch.take(i, PickedSet::words_for(spec.fanout));
    if (words == nullptr) return false;
    PickedSet seen(words, spec.fanout);
    pick_without_replacement(
        draws, degree, spec.fanout, out,
        [&seen](int64_t, int64_t position) { return seen.contains(position); },
        [&seen](int64_t position) { seen.add(position); });
    return true;
  }

  // Gaps: a place for each hole and, without replacement, for each pick but the last.
  KHOP_HD int64_t pick_by_weight(int64_t i, const Row& row, int64_t begin,
                                 const EligibleEdges<Ptr, Col>& edges, const Holes& left_out,
                                 int64_t* out) const {
    const WeightedRow weights = edges.weights();
    const uint64_t base = weights.before(begin - row.begin);
    uint64_t total = weights.sums[row.end - 1 - row.begin] - base;
    const int64_t capacity = left_out.count + (spec.replace ? 0 : spec.fanout);
    uint64_t* const words = capacity > 0 ? scratch.take(i, 2 * capacity) : nullptr;
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
    for (; count < spec.fanout && total > 0; ++count) {
      const uint64_t point = stream.below(total);
      const uint64_t place = base + gaps.place(point);
      const int64_t position = weights.find(place);
      out[count] = row.begin + position;
      if (spec.replace || count + 1 == spec.fanout) continue;
      const uint64_t before = weights.before(position);
      const uint64_t length = weights.sums[position] - before;
      gaps.close(point, place - base, before - base, length);
      total -= length;
    }
    return count;
  }
};

}  // namespace khop::parallel
