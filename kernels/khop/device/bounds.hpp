// Upper bounds of a batch's size, hop by hop, before it is drawn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "khop/core/pick.hpp"
#include "khop/core/sizes.hpp"
#include "khop/core/subgraph.hpp"
#include "khop/device/sample_plan.hpp"
#include "khop/device/steps/batch_view.hpp"
#include "khop/device/steps/pick_rows.hpp"

namespace khop::device {

// A hop over all edge types: entries that there is room for.
struct HopBounds {
  int64_t rows = 0;
  int64_t picks = 0;
  int64_t edges = 0;
  int64_t candidates = 0;        // edges of which only some are kept
  int64_t words_per_thread = 0;  // to work in
  bool is_filtered = false;      // there may be candidates

  bool empty() const { return rows == 0 || edges == 0; }
  bool operator==(const HopBounds& other) const {
    return rows == other.rows && picks == other.picks && edges == other.edges &&
           candidates == other.candidates && words_per_thread == other.words_per_thread &&
           is_filtered == other.is_filtered;
  }
};

// Room for what is drawn and worked with. Fixed fan-outs say what a batch needs at most. Where that
// is much, or is not known, room is what earlier batches needed: a batch that finds too little
// is drawn again.
struct Room {
  std::vector<int64_t> positions;  // of each node type
  int64_t rows = 0;
  int64_t picks = 0;
  int64_t edges = 0;
  int64_t candidates = 0;
  int64_t scratch = 0;
  // Entries up to this are made room for without asking whether a batch will need them: all types
  // share them.
  int64_t eager = 0;

  // Takes over what a batch turned out to need. Returns whether any of it is new.
  bool learn(const TypeState* states, const Needs& needs) {
    bool is_new = false;
    const auto note = [&is_new](int64_t& room, int64_t needed) {
      const int64_t wanted = needed + needed / 4;
      is_new |= wanted > room;
      room = std::max(room, wanted);
    };
    for (std::size_t t = 0; t < positions.size(); ++t) note(positions[t], states[t].needed);
    note(rows, needs.rows);
    note(picks, needs.picks);
    note(edges, needs.edges);
    note(candidates, needs.candidates);
    note(scratch, needs.scratch);
    return is_new;
  }

  // For what may need `most` entries, of which batches so far have needed `learned`.
  int64_t entries(int64_t most, int64_t learned) const { return entries(most, learned, eager); }
  int64_t positions_of(std::size_t type, int64_t most) const {
    const auto types = static_cast<int64_t>(positions.size());
    return entries(most, positions[type], std::max<int64_t>(1, eager / types));
  }

 private:
  static int64_t entries(int64_t most, int64_t learned, int64_t eager) {
    return most <= eager ? most : std::min(most, std::max(eager, learned));
  }
};

inline int64_t product(int64_t a, int64_t b) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;
  if (a == 0 || b == 0) return 0;
  return a > kMost / b ? kMost : a * b;
}

// How a hop draws over an edge type: a fan-out that no row exceeds takes rows whole.
// `has_excluded`: some of its edges are left out.
inline HopStep step_of(HopOptions options, bool has_excluded, int64_t max_degree) {
  if (max_degree == 0) options.fanout = 0;
  if (options.fanout == 0 || !takes_all(max_degree, options.fanout, options.replace)) {
    return {options, RowMode::kPicked, 0};
  }
  return {options, has_excluded || options.weighted ? RowMode::kFiltered : RowMode::kWhole, 0};
}

// Words that a thread needs to draw a row.
inline int64_t words_of(const HopStep& step, const GraphArrays& graph) {
  if (step.mode != RowMode::kPicked) return 0;
  const HopOptions& options = step.options;
  if (options.method == HopMethod::kLabor) {
    return product(labor_words(1, options.weighted), options.fanout);
  }
  if (options.weighted) return options.replace ? 0 : product(2, options.fanout);
  const bool scans =
      options.fanout <= kScanLimit && graph.max_degree <= std::numeric_limits<uint32_t>::max();
  return options.replace || scans ? 0 : PickedSet::words_for(options.fanout);
}

class BoundsOfBatch {
 public:
  // seeds, num_ids: of each node type. `has_excluded`: edge types of which edges are left out.
  BoundsOfBatch(const SamplePlan& plan, const std::vector<Relation>& relations,
                const std::vector<int64_t>& seeds, const std::vector<int64_t>& num_ids,
                bool disjoint, const std::vector<bool>& has_excluded, const Room& learned) {
    std::vector<int64_t> frontier = seeds;
    std::vector<int64_t> positions = seeds;
    std::vector<std::vector<int64_t>> found(plan.num_hops());
    for (std::size_t h = 0; h < plan.num_hops(); ++h) {
      found[h].assign(seeds.size(), 0);
      HopBounds& hop = hops.emplace_back();
      auto& of_relations = steps.emplace_back();
      for (std::size_t r = 0; r < relations.size(); ++r) {
        const auto source = static_cast<std::size_t>(relations[r].source);
        const auto destination = static_cast<std::size_t>(relations[r].destination);
        const int64_t max_degree = plan.max_degree(r, h);
        const HopStep step =
            plan.program.step_of(step_of(plan.hops[r][h], has_excluded[r], max_degree));
        of_relations.push_back(step);
        if (step.is_empty()) continue;
        const int64_t edges = add(hop, step, frontier[destination], max_degree);
        found[h][source] = std::min(found[h][source] + std::min(edges, kEnough), kEnough);
        hop.words_per_thread = std::max(hop.words_per_thread, words_of(step, plan.graphs[r]));
      }
      for (std::size_t t = 0; t < seeds.size(); ++t) {
        positions[t] = std::min(positions[t] + found[h][t], kEnough);
        const int64_t reached = plan.layer_wise ? positions[t] : found[h][t];
        const int64_t nodes = plan.layer_wise ? count_with(num_ids[t], seeds[t]) : num_ids[t];
        frontier[t] = disjoint ? reached : std::min(reached, nodes);
        frontier[t] = std::min(frontier[t], room_for(positions[t], seeds[t], learned, t));
      }
    }
    room.positions.resize(seeds.size());
    for (std::size_t t = 0; t < seeds.size(); ++t) {
      room.positions[t] = std::max<int64_t>(1, room_for(positions[t], seeds[t], learned, t));
      is_certain = is_certain && positions[t] <= room.positions[t];
    }
    for (std::size_t h = 0; h < hops.size(); ++h) limit(hops[h], found[h], learned);
  }

  // Nodes and edges that a batch has at most.
  int64_t most_items(const std::vector<int64_t>& num_ids, bool disjoint) const {
    int64_t most = 0;
    for (std::size_t t = 0; t < num_ids.size(); ++t) {
      const int64_t positions = room.positions[t];
      most += positions + (disjoint ? positions : std::min(positions, num_ids[t]));
    }
    return most;
  }

  std::vector<HopBounds> hops;
  std::vector<std::vector<HopStep>> steps;  // of each hop, an edge type each; no keys yet
  Room room;
  bool is_certain = true;  // no batch needs more

 private:
  static constexpr int64_t kEnough = int64_t{1} << 40;

  static int64_t room_for(int64_t positions, int64_t seeds, const Room& learned, std::size_t t) {
    return std::max(seeds, learned.positions_of(t, positions));
  }

  // Adds the rows of an edge type to a hop; returns how many edges they may contribute.
  static int64_t add(HopBounds& hop, const HopStep& step, int64_t rows, int64_t max_degree) {
    const bool picks = step.mode == RowMode::kPicked;
    const bool is_bounded = picks || step.mode == RowMode::kListed;
    const int64_t edges = product(rows, is_bounded ? step.options.fanout : max_degree);
    hop.rows = std::min(hop.rows + rows, kEnough);
    if (picks) hop.picks = std::min(hop.picks + std::min(edges, kEnough), kEnough);
    if (step.mode == RowMode::kFiltered) {
      hop.is_filtered = true;
      hop.candidates = std::min(hop.candidates + std::min(edges, kEnough), kEnough);
    }
    return edges;
  }

  void limit(HopBounds& hop, const std::vector<int64_t>& found, const Room& learned) {
    int64_t edges = 0;
    for (std::size_t t = 0; t < found.size(); ++t) {
      edges += std::min(found[t], room.positions[t]);
    }
    const HopBounds most = hop;
    hop.rows = learned.entries(hop.rows, learned.rows);
    hop.picks = learned.entries(hop.picks, learned.picks);
    hop.edges = learned.entries(edges, learned.edges);
    hop.candidates = learned.entries(hop.candidates, learned.candidates);
    is_certain = is_certain && hop.rows == most.rows && hop.picks == most.picks &&
                 hop.edges == edges && hop.candidates == most.candidates;
  }
};

}  // namespace khop::device
