// Plan by which a device draws a batch, and the shape of the result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "khop/core/hop_options.hpp"
#include "khop/core/subgraph.hpp"
#include "khop/device/graph.hpp"
#include "khop/device/program.hpp"
#include "khop/device/steps/links.hpp"
#include "khop/device/steps/write_ahead.hpp"

namespace khop::device {

// Sizes of a padded batch's sections: see steps/write_padded.hpp.
struct PadSizes {
  std::vector<std::vector<int64_t>> nodes;  // a node type each: of seeds and hops
  std::vector<std::vector<int64_t>> edges;  // an edge type each: of hops
  bool leaves_room = false;                 // a section is never full

  bool is_there() const { return !nodes.empty(); }
  int64_t num_items() const {
    int64_t items = 0;
    for (const auto* of : {&nodes, &edges}) {
      for (const auto& sizes : *of) items = std::accumulate(sizes.begin(), sizes.end(), items);
    }
    return items;
  }
};

// Where a batch is written as soon as it is drawn: see steps/write_ahead.hpp.
struct BatchBlock {
  int64_t* words = nullptr;  // null: nowhere
  int64_t capacity = 0;
  std::vector<EdgeTarget> edges;  // an edge type each
  bool backward = false;
  PadSizes padding;
};

// How seeds are made of links: see steps/links.hpp.
struct LinkPlan {
  struct End {
    int32_t type = 0;
    TimedCandidates candidates{};
  };
  End ends[2];  // sources and destinations
  bool pairs = false;
  int64_t amount = 1;
  int32_t relation = -1;  // whose edges negatives must not be; -1: they may
  bool rows_are_sources = false;
  // Edge types whose edges neighbourhoods leave out, if they join a link.
  struct Exclusion {
    int32_t relation;
    bool rows_are_sources;
  };
  std::vector<Exclusion> excluded;
};

// Links of a batch, in the host's memory, and where positions of their ends go, in the device's.
struct LinkBatch {
  LinkPlan plan;
  const int64_t* src = nullptr;
  const int64_t* dst = nullptr;
  const int64_t* times = nullptr;  // null: none
  int64_t num_links = 0;
  int64_t num_negatives = 0;
  int64_t* index = nullptr;
};

struct SamplePlan {
  std::vector<GraphArrays> graphs;            // an edge type each
  std::vector<std::vector<HopOptions>> hops;  // an edge type each, then a hop each; no keys yet
  uint64_t run_key = 0;
  uint64_t batch = 0;
  // All nodes draw in each hop, not only those that the hop before has found.
  bool layer_wise = false;
  Program program;
  // Captures the batch's kernels and launches them again for batches of the same plan.
  bool as_graph = false;
  // Others draw the rows of each hop.
  bool is_merged = false;
  BatchBlock block;

  std::size_t num_hops() const { return hops.empty() ? 0 : hops[0].size(); }

  // Leaves the draws to others, who may take all edges of a row, as many as its fan-out.
  void leave_draws() {
    is_merged = true;
    as_graph = false;
    for (auto& of_relation : hops) {
      for (HopOptions& options : of_relation) options = {options.fanout};
    }
  }
  // Edges that a hop draws of a row where it takes all of them.
  int64_t max_degree(std::size_t relation, std::size_t hop) const {
    if (!is_merged) return graphs[relation].max_degree;
    const int64_t fanout = hops[relation][hop].fanout;
    return fanout < 0 ? std::numeric_limits<int32_t>::max() : fanout;
  }
};

// Edge types in the order in which a hop goes over them (batch_view.hpp).
struct RelationOrder {
  RelationOrder(const std::vector<Relation>& of, std::size_t num_types) {
    check_relations(of, num_types);
    for (std::size_t r = 0; r < of.size(); ++r) relations.push_back(r);
    std::stable_sort(relations.begin(), relations.end(),
                     [&](std::size_t a, std::size_t b) { return of[a].source < of[b].source; });
    first.assign(num_types + 1, 0);
    for (const Relation& r : of) ++first[static_cast<std::size_t>(r.source) + 1];
    std::partial_sum(first.begin(), first.end(), first.begin());
  }

  std::vector<std::size_t> relations;
  std::vector<int64_t> first;  // by node type of the neighbours, in that order; and the end
};

struct BatchShape {
  std::vector<int64_t> num_nodes;                   // a node type each
  std::vector<int64_t> num_edges;                   // an edge type each
  std::vector<std::vector<int64_t>> nodes_per_hop;  // seeds first
  std::vector<std::vector<int64_t>> edges_per_hop;
};

// Where a batch is written to: arrays of the device, of its shape's lengths. Null, or no entries
// at all: not wanted.
struct BatchOut {
  std::vector<int64_t*> nodes;  // a node type each
  std::vector<int64_t*> trees;
  std::vector<int64_t*> rows;  // an edge type each
  std::vector<int64_t*> cols;
  // Their names, or where there are none their positions in the graph.
  std::vector<int64_t*> edges;
  std::vector<AnyInts> names;  // of all edges of the graph that the batch was drawn from
  std::vector<float*> values;  // of edges that a program drew
};

// Entries of a block that a batch takes.
inline int64_t words_of(const BatchShape& shape, bool disjoint,
                        const std::vector<EdgeTarget>& edges) {
  int64_t words = 0;
  for (const int64_t count : shape.num_nodes) words += disjoint ? 2 * count : count;
  for (std::size_t r = 0; r < shape.num_edges.size(); ++r) {
    words += shape.num_edges[r] * (edges[r].is_named != 0 ? 3 : 2) +
             edges[r].value_words(shape.num_edges[r]);
  }
  return words;
}

// Lengths of the arrays of a padded batch's block, in its order, in words: masks are bytes.
inline std::vector<int64_t> padded_lengths(const PadSizes& sizes, bool disjoint,
                                           const std::vector<EdgeTarget>& edges) {
  std::vector<int64_t> nodes, ends, lengths;
  const auto sum = [](const auto& of) { return std::accumulate(of.begin(), of.end(), int64_t{0}); };
  for (const auto& of : sizes.nodes) nodes.push_back(sum(of));
  for (const auto& of : sizes.edges) ends.push_back(sum(of));
  lengths = nodes;
  if (disjoint) lengths.insert(lengths.end(), nodes.begin(), nodes.end());
  for (const int64_t count : ends) lengths.push_back(2 * count);
  for (std::size_t r = 0; r < ends.size(); ++r) {
    if (edges[r].is_named != 0) lengths.push_back(ends[r]);
  }
  for (const auto* of : {&nodes, &ends}) {
    for (const int64_t count : *of) lengths.push_back((count + 7) / 8);
  }
  return lengths;
}

// Without any hops: the seeds alone.
inline SamplePlan plan_without_hops(std::size_t num_relations) {
  SamplePlan plan;
  plan.graphs.resize(num_relations);
  plan.hops.resize(num_relations);
  return plan;
}

inline void check_options(const HopOptions& options, const GraphArrays& graph) {
  if (options.weighted && graph.weight_sums == nullptr) {
    throw std::invalid_argument("weighted draws need a graph with weights");
  }
  if (options.method == HopMethod::kLabor && !graph.view().knows_neighbors()) {
    throw std::invalid_argument("LABOR needs a graph with the neighbours' original ids");
  }
  if (options.replace && options.fanout > std::numeric_limits<int32_t>::max()) {
    throw std::length_error("a fan-out of " + std::to_string(options.fanout) +
                            " with replacement is more than 2^31 - 1");
  }
}

// Throws where a graph lacks what a hop over it needs.
inline void check_plan(const SamplePlan& plan) {
  for (std::size_t r = 0; r < plan.graphs.size(); ++r) {
    for (const HopOptions& options : plan.hops[r]) check_options(options, plan.graphs[r]);
  }
  if (!plan.program.is_there()) return;
  if (plan.as_graph || plan.block.padding.is_there()) {
    throw std::invalid_argument("batches of a program are neither recorded nor padded");
  }
}

}  // namespace khop::device
