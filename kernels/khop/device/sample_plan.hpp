// Plan by which a device draws a batch, and the shape of the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "khop/core/hop_options.hpp"
#include "khop/core/subgraph.hpp"
#include "khop/device/graph.hpp"

namespace khop::device {

struct SamplePlan {
  std::vector<GraphArrays> graphs;            // an edge type each
  std::vector<std::vector<HopOptions>> hops;  // an edge type each, then a hop each; no keys yet
  uint64_t run_key = 0;
  uint64_t batch = 0;
  // Captures the batch's kernels and launches them again for batches of the same plan.
  bool as_graph = false;

  std::size_t num_hops() const { return hops.empty() ? 0 : hops[0].size(); }
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
};

// Without any hops: the seeds alone.
inline SamplePlan plan_without_hops(std::size_t num_relations) {
  return {std::vector<GraphArrays>(num_relations),
          std::vector<std::vector<HopOptions>>(num_relations)};
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
  for (std::size_t r = 0; r < plan.hops.size(); ++r) {
    for (const HopOptions& options : plan.hops[r]) check_options(options, plan.graphs[r]);
  }
}

}  // namespace khop::device
