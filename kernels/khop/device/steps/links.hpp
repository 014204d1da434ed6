// Seeds of a batch of links: the ends of its links and of its negatives, which are drawn on the
// way.
//
// Ends are numbered: sources of links, sources of negatives (if these are seeds), destinations of
// links, destinations of negatives. Each distinct node is one seed, ascending by id, or in a
// disjoint batch each end is. As in sampler/drawing/link.py:
//   1. KeyEnds finds the node of each end, and keys it by type and id;
//   2. a sort, and a sum over FirstOfKey, which numbers distinct nodes;
//   3. PlaceLinks writes seeds and the positions of ends. PlaceTrees does all of it where each end
//      is a tree.
#pragma once

#include <cstdint>

#include "khop/core/search.hpp"
#include "khop/device/steps/batch_view.hpp"
#include "khop/device/steps/negative_draws.hpp"

namespace khop::device {

// Nodes that an end of negatives is drawn from. Links with times have those that exist by then.
struct TimedCandidates {
  NodeCandidates nodes;
  const int64_t* times;  // from which each exists, in their order; null: always

  KHOP_HD int64_t limit(int64_t time) const {
    const int64_t count = first_above(times, nodes.num_nodes, time);
    return count < 1 ? 1 : count;  // the earliest always exists
  }
};

// One end of links: sources (0) or destinations (1).
struct LinkEnd {
  int64_t type;
  TimedCandidates candidates;
  const int64_t* nodes;  // of links
  const int64_t* drawn;  // of negatives; null: drawn by `key` where they are read
  uint64_t key;
};

struct LinkView {
  LinkEnd ends[2];
  const int64_t* times;  // of links; null: none
  int64_t num_links;
  int64_t num_negatives;
  int64_t amount;  // negatives of a triplet
  // Neither this nor a step that has it has any padding: GCC 12's __builtin_clear_padding, with
  // which the tests' runtime clears that of arguments, clears other bytes behind `ends`.
  int32_t pairs;  // negatives have sources of their own, which are seeds
  int32_t disjoint;
  int64_t* index;  // positions of ends, as written by PlaceLinks

  KHOP_HD int64_t num_sources() const { return num_links + (pairs != 0 ? num_negatives : 0); }
  KHOP_HD int64_t num_ends() const { return num_sources() + num_links + num_negatives; }
  KHOP_HD int side_of(int64_t end) const { return end < num_sources() ? 0 : 1; }
  KHOP_HD int64_t place_of(int64_t end) const {
    return end < num_sources() ? end : end - num_sources();
  }
  // The link whose time an end has.
  KHOP_HD int64_t link_of(int64_t place) const { return place % num_links; }
  // The link whose source a triplet's negative has.
  KHOP_HD int64_t link_of_triplet(int64_t negative) const {
    return disjoint != 0 ? negative % num_links : negative / amount;
  }

  KHOP_HD int64_t limit(int side, int64_t negative) const {
    const TimedCandidates& from = ends[side].candidates;
    if (times == nullptr || from.times == nullptr) return from.nodes.num_nodes;
    return from.limit(times[link_of(negative)]);
  }
  KHOP_HD int64_t node_of(int64_t end) const {
    const int side = side_of(end);
    const LinkEnd& of = ends[side];
    const int64_t place = place_of(end);
    if (place < num_links) return of.nodes[place];
    const int64_t negative = place - num_links;
    if (of.drawn != nullptr) return of.drawn[negative];
    const uint64_t word = draw_pair(of.key, negative / 2).word_of(negative);
    return of.candidates.nodes.draw(word, limit(side, negative));
  }

  // Where an end's position is written: as many sources, then destinations. The negatives of a
  // link of triplets lie side by side.
  KHOP_HD int64_t slot_of(int64_t end) const {
    const int64_t negative = place_of(end) - num_links;
    if (pairs != 0 || disjoint == 0 || negative < 0) return end;
    return end - negative + negative % num_links * amount + negative / num_links;
  }
};

// What strict negatives are drawn by: limits of each, where links have times, and given sources.
struct GiveNegatives {
  LinkView links;
  int64_t* limits[2];  // null: none
  int64_t* sources;    // null: they are drawn

  KHOP_HD void operator()(int64_t negative) const {
    for (int side = 0; side < 2; ++side) {
      if (limits[side] != nullptr) limits[side][negative] = links.limit(side, negative);
    }
    if (sources != nullptr) {
      sources[negative] = links.ends[0].nodes[links.link_of_triplet(negative)];
    }
  }
};

// What became of strict negatives.
struct StrictOutcome {
  const int64_t* num_left;    // that join an edge still; null: negatives need not be strict
  const uint64_t* first_bad;  // three words of StrictNegatives
  const int64_t* rows;        // the node of each negative whose row was read

  KHOP_HD void report(const BatchView& batch) const {
    if (num_left == nullptr) return;
    if (first_bad[2] != ~uint64_t{0}) {
      batch.error->report(DeviceError::kNoSuchRow, rows[first_bad[2]]);
    }
    if (*num_left == 0) return;
    batch.needs->negatives = *num_left;
    batch.needs->exceeded = 1;
  }
};

struct KeyEnds {
  LinkView links;
  int64_t higher_type;  // of two types: ends of it come last
  int64_t id_bits;
  uint64_t* keys;
  int64_t* ends;

  KHOP_HD void operator()(int64_t end) const {
    const bool is_last = links.ends[links.side_of(end)].type == higher_type;
    const uint64_t first = is_last ? uint64_t{1} << id_bits : 0;
    keys[end] = first | static_cast<uint64_t>(links.node_of(end));
    ends[end] = end;
  }
};

struct PlaceLinks {
  LinkView links;
  BatchView batch;
  StrictOutcome strict;
  PlanRows rows;         // of the first hop
  const uint64_t* keys;  // sorted
  const int64_t* ends;
  const int64_t* ranks;  // distinct keys before each
  int64_t num_lower;     // ends of the lower type
  int64_t id_bits;
  int64_t* seeds;
  int64_t* seed_starts;  // [num_types + 1]

  KHOP_HD void operator()(int64_t j) const {
    const int64_t number = ranks[j + 1] - 1;
    if (ranks[j] == number) {
      seeds[number] = static_cast<int64_t>(keys[j] & ((uint64_t{1} << id_bits) - 1));
    }
    const int64_t before = j < num_lower ? 0 : ranks[num_lower];
    links.index[links.slot_of(ends[j])] = number - before;
    if (j == 0) begin_batch();
  }

 private:
  // What the host writes where it knows the seeds.
  KHOP_HD void begin_batch() const {
    const int64_t first = links.ends[0].type;
    const int64_t second = links.ends[1].type;
    const int64_t lower = first < second ? first : second;
    const int64_t higher = first < second ? second : first;
    const int64_t all = ranks[links.num_ends()];
    const int64_t of_lower = lower == higher ? all : ranks[num_lower];
    for (int64_t t = 0; t < batch.num_types; ++t) {
      seed_starts[t + 1] = t < lower ? 0 : t < higher ? of_lower : all;
      const int64_t count = seed_starts[t + 1] - seed_starts[t];
      TypeState& state = batch.states[t];
      state.positions = state.nodes = state.frontier_size = state.needed = count;
    }
    strict.report(batch);
    for (int64_t k = 0; k < batch.num_relations; ++k) rows.count(k);
    rows.add_up();
  }
};

struct PlaceTrees {
  LinkView links;
  BatchView batch;
  StrictOutcome strict;
  const int64_t* seed_starts;
  int64_t* seeds;
  int64_t* times;

  KHOP_HD void operator()(int64_t end) const {
    const int side = links.side_of(end);
    const int64_t type = links.ends[side].type;
    const bool is_one_type = type == links.ends[1 - side].type;
    const int64_t place = is_one_type ? end : links.place_of(end);
    seeds[seed_starts[type] + place] = batch.buffers[type].key(end, links.node_of(end));
    if (links.times != nullptr) times[end] = links.times[links.link_of(links.place_of(end))];
    links.index[links.slot_of(end)] = place;
    if (end == 0) strict.report(batch);
  }
};

}  // namespace khop::device
