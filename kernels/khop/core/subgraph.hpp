// Terms of a batch's subgraph that the CPU and devices share, and their checks.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace khop {

// An edge type of a batch, by its node types.
struct Relation {
  int32_t source;       // of the neighbours
  int32_t destination;  // whose neighbours are drawn
};

// Edges of `relation` with the reverses of `reverse`; where `mirror`, `reverse` becomes the mirror
// image of what results.
struct Reversal {
  int32_t relation;
  int32_t reverse;
  bool mirror;
};

// Throws std::invalid_argument for a node type that does not exist.
inline void check_relations(const std::vector<Relation>& relations, std::size_t num_types) {
  const auto count = static_cast<int32_t>(num_types);
  for (const Relation& r : relations) {
    if (r.source < 0 || r.source >= count || r.destination < 0 || r.destination >= count) {
      throw std::invalid_argument("an edge type names a node type that does not exist");
    }
  }
}

// Throws std::invalid_argument for edge types that do not reverse each other, or that cannot keep
// the numbers of edges. `lost_edges`: they are wanted, but earlier reverses have none.
inline void check_reversal(const std::vector<Relation>& relations, const Reversal& r,
                           bool keep_edges, bool lost_edges) {
  const Relation there = relations[static_cast<std::size_t>(r.relation)];
  const Relation back = relations[static_cast<std::size_t>(r.reverse)];
  if (there.source != back.destination || there.destination != back.source) {
    throw std::invalid_argument("edge type " + std::to_string(r.reverse) +
                                " does not lead back where edge type " +
                                std::to_string(r.relation) + " comes from");
  }
  if (keep_edges && (r.relation != r.reverse || r.mirror)) {
    throw std::invalid_argument("only edges of one type keep their numbers beside their reverses");
  }
  if (keep_edges && lost_edges) {
    throw std::invalid_argument("edges have lost their numbers: reverses were added before");
  }
}

}  // namespace khop
