// Arguments of batches that a device draws, checked; and those that all batches of a sampler share.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/device_graph.hpp"
#include "khop/bindings/hop_options.hpp"
#include "khop/core/sizes.hpp"
#include "khop/device/sample_plan.hpp"

namespace khop::bindings {

using Names = std::vector<std::tuple<uintptr_t, int, int64_t>>;
using Sizes = std::vector<std::vector<int64_t>>;
using Padding = std::tuple<Sizes, Sizes, bool, bool>;

inline std::vector<device::GraphArrays> arrays_of(const nb::list& graphs,
                                                  const SharedDevice& device,
                                                  std::size_t num_relations) {
  if (nb::len(graphs) != num_relations) {
    throw nb::value_error("there must be a graph for each edge type");
  }
  std::vector<device::GraphArrays> arrays;
  for (const nb::handle item : graphs) {
    if (!nb::isinstance<DeviceGraph>(item)) {
      throw nb::type_error("graphs must hold a DeviceGraph for each edge type");
    }
    const auto& graph = nb::cast<const DeviceGraph&>(item);
    // Several streams of one GPU may read the same graph.
    if (graph.device()->name() != (*device)->name()) {
      throw nb::value_error("a graph belongs to another device than the subgraph");
    }
    arrays.push_back(graph.arrays_for(device));
  }
  return arrays;
}

// Edges are drawn from the graph alone: with a name for each of its edges none can lack one.
inline std::vector<AnyInts> checked_names(const Names& names,
                                          const std::vector<device::GraphArrays>& graphs) {
  std::vector<AnyInts> typed;
  for (std::size_t r = 0; r < names.size(); ++r) {
    const auto& [address, width, count] = names[r];
    typed.push_back({reinterpret_cast<const void*>(address), width});
    if (address == 0) continue;
    if (width != 4 && width != 8) throw nb::value_error("names must have 4 or 8 bytes");
    const int64_t needed =
        r < graphs.size() ? count_with(graphs[r].first_edge, graphs[r].num_edges) : 0;
    if (count < needed) {
      throw nb::index_error(("edge " + std::to_string(count) + " of edge type " +
                             std::to_string(r) + " has no name: edges are below " +
                             std::to_string(needed) + ", and there are " + std::to_string(count) +
                             " names")
                                .c_str());
    }
  }
  return typed;
}

// What all batches of a sampler have in common, checked once.
class PyDevicePlan {
 public:
  PyDevicePlan(SharedDevice device, nb::list graphs, HopTable hops, bool cuda_graph,
               const Names& names, const std::vector<bool>& named, bool backward,
               const std::optional<Padding>& padding, const std::optional<device::Program>& program,
               bool layer_wise)
      : device_(std::move(device)), graphs_(std::move(graphs)) {
    const std::size_t num_relations = nb::len(graphs_);
    plan_.graphs = arrays_of(graphs_, device_, num_relations);
    check_hops(hops, num_relations);
    plan_.hops = std::move(hops);
    plan_.as_graph = cuda_graph;
    check_length(names.size(), num_relations, "names");
    check_length(named.size(), num_relations, "named");
    plan_.block.backward = backward;
    const std::vector<AnyInts> typed = checked_names(names, plan_.graphs);
    for (std::size_t r = 0; r < num_relations; ++r) {
      plan_.block.edges.push_back({typed[r], named[r] ? 1 : 0, program.has_value() ? 1 : 0});
    }
    plan_.layer_wise = layer_wise;
    if (program.has_value()) take(*program);
    if (padding.has_value()) take(*padding);
  }

  const device::SamplePlan& get() const { return plan_; }
  const nb::list& graphs() const { return graphs_; }
  const SharedDevice& device() const { return device_; }

  bool disjoint() const { return disjoint_; }
  // Of the arrays of a padded batch.
  const std::vector<int64_t>& lengths() const { return lengths_; }

  // What a batch took: later ones get an eighth more at once.
  int64_t block_words() const { return block_words_; }
  void note(int64_t words) {
    if (lengths_.empty() && words > block_words_) block_words_ = words + words / 8;
  }

 private:
  void take(const device::Program& program) {
    if (plan_.graphs.size() != 1) throw nb::value_error("programs draw from one edge type");
    if (program.method == device::Program::kVisits) {
      if (plan_.block.edges[0].is_named != 0) {
        throw nb::value_error("nodes that walks visit are joined by no edges of the graph");
      }
    } else {
      check_length(program.counts.size(), plan_.num_hops(), "counts of the program");
    }
    plan_.program = program;
    device::check_plan(plan_);
  }

  void take(const Padding& padding) {
    device::PadSizes sizes;
    std::tie(sizes.nodes, sizes.edges, sizes.leaves_room, disjoint_) = padding;
    if (!sizes.is_there()) throw nb::value_error("padding needs sizes of nodes");
    const std::size_t hops = plan_.num_hops();
    check_length(sizes.edges.size(), plan_.graphs.size(), "edges of padding");
    for (const auto* of : {&sizes.nodes, &sizes.edges}) {
      for (const auto& sections : *of) {
        check_length(sections.size(), hops + (of == &sizes.nodes ? 1 : 0), "sections of padding");
        for (const int64_t size : sections) {
          if (size < 0 || size > std::numeric_limits<int32_t>::max()) {
            throw nb::value_error("sizes of padding must be in [0, 2^31)");
          }
        }
      }
    }
    if (plan_.block.backward || hops == 0) {
      throw nb::value_error("only batches of in-neighbours, with hops, are padded");
    }
    plan_.block.padding = std::move(sizes);
    device::check_plan(plan_);
    lengths_ = device::padded_lengths(plan_.block.padding, disjoint_, plan_.block.edges);
    block_words_ = std::accumulate(lengths_.begin(), lengths_.end(), int64_t{0});
  }

  SharedDevice device_;
  nb::list graphs_;
  device::SamplePlan plan_;
  bool disjoint_ = false;
  std::vector<int64_t> lengths_;
  int64_t block_words_ = 0;
};

}  // namespace khop::bindings
