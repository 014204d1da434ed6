// How large a batch may become: what is known before it is drawn, hop by hop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "subgraph_types.hpp"

namespace khop {

// A hop over one edge type.
struct HopBounds {
  int64_t fanout;  // -1: rows are taken whole
  int64_t rows;
  int64_t edges;
  int64_t candidates;  // edges of which only some are kept; 0: there are none
  bool empty() const { return rows == 0 || edges == 0; }
};

// Room for the positions of each node type and for what is worked with. Fixed fan-outs say what a
// batch needs at most. Where that is much, or nothing says so, room is what earlier batches needed:
// a batch that finds too little is drawn again.
struct Room {
  std::vector<int64_t> positions;
  int64_t candidates = 0;
  int64_t scratch = 0;
  // Entries up to this are made room for without asking whether a batch will need them.
  int64_t eager = 0;

  // For what may need `most` entries, of which batches so far have needed `learned`.
  int64_t entries(int64_t most, int64_t learned) const {
    return most <= eager ? most : std::min(most, std::max(eager, learned));
  }
};

inline int64_t product(int64_t a, int64_t b) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;
  if (a == 0 || b == 0) return 0;
  return a > kMost / b ? kMost : a * b;
}

// A fan-out that no row exceeds takes rows whole.
inline int64_t effective_fanout(int64_t fanout, bool replace, int64_t max_degree) {
  if (fanout < 0) return -1;
  return !replace && fanout > 0 && fanout >= max_degree ? -1 : fanout;
}

class BoundsOfBatch {
 public:
  // seeds, num_ids: of each node type. `filtered`: edge types of which edges are left out, or drawn
  // by weight.
  BoundsOfBatch(const SamplePlan& plan, const std::vector<DeviceRelation>& relations,
                const std::vector<int64_t>& seeds, const std::vector<int64_t>& num_ids,
                bool disjoint, const std::vector<bool>& filtered, const Room& learned) {
    std::vector<int64_t> frontier = seeds;
    std::vector<int64_t> positions = seeds;
    for (std::size_t h = 0; h < plan.num_hops(); ++h) {
      std::vector<int64_t> found(seeds.size(), 0);
      std::vector<HopBounds>& hop = hops.emplace_back();
      for (std::size_t r = 0; r < relations.size(); ++r) {
        const auto source = static_cast<std::size_t>(relations[r].source);
        const auto destination = static_cast<std::size_t>(relations[r].destination);
        const HopBounds b = bounds_of(plan, h, r, frontier[destination], filtered[r], learned);
        hop.push_back(b);
        found[source] += std::min(b.edges, kEnough);
      }
      for (std::size_t t = 0; t < seeds.size(); ++t) {
        positions[t] = std::min(positions[t] + found[t], kEnough);
        frontier[t] = disjoint ? found[t] : std::min(found[t], num_ids[t]);
        frontier[t] = std::min(frontier[t], room_for(positions[t], seeds[t], learned, t));
      }
    }
    room.positions.resize(seeds.size());
    for (std::size_t t = 0; t < seeds.size(); ++t) {
      room.positions[t] = std::max<int64_t>(1, room_for(positions[t], seeds[t], learned, t));
    }
    for (auto& hop : hops) {
      for (std::size_t r = 0; r < relations.size(); ++r) {
        hop[r].edges =
            std::min(hop[r].edges, room.positions[static_cast<std::size_t>(relations[r].source)]);
      }
    }
  }

  std::vector<std::vector<HopBounds>> hops;
  Room room;

 private:
  static constexpr int64_t kEnough = int64_t{1} << 40;

  static int64_t room_for(int64_t positions, int64_t seeds, const Room& learned, std::size_t t) {
    return std::max(seeds, learned.entries(positions, learned.positions[t]));
  }

  static HopBounds bounds_of(const SamplePlan& plan, std::size_t hop, std::size_t relation,
                             int64_t rows, bool filtered, const Room& learned) {
    const int64_t max_degree = plan.graphs[relation].max_degree;
    const int64_t fanout = effective_fanout(plan.fanouts[relation][hop], plan.replace, max_degree);
    const int64_t most = max_degree == 0 ? 0 : product(rows, fanout < 0 ? max_degree : fanout);
    const int64_t candidates =
        fanout < 0 && filtered ? learned.entries(most, learned.candidates) : 0;
    return {fanout, rows, most, candidates};
  }
};

}  // namespace khop
