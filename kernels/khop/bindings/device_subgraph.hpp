// A batch's subgraph on a device, as Python has it.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/device_links.hpp"
#include "khop/bindings/device_plan.hpp"
#include "khop/bindings/hop_options.hpp"

namespace khop::bindings {

// Checks arguments; the rest is the interface's.
class PyDeviceSubgraph {
 public:
  using Pairs = std::vector<std::pair<int32_t, int32_t>>;
  using Addresses = std::vector<uintptr_t>;

  PyDeviceSubgraph(std::shared_ptr<PyDevice> device, const std::vector<int64_t>& num_nodes,
                   const Pairs& relations, bool with_edges, bool disjoint, int64_t room)
      : device_(std::move(device)),
        num_nodes_(num_nodes),
        num_types_(num_nodes.size()),
        num_relations_(relations.size()),
        with_edges_(with_edges),
        disjoint_(disjoint) {
    if (room < 1) throw nb::value_error("room must be at least 1");
    std::vector<Relation> typed;
    for (const auto& [source, destination] : relations) typed.push_back({source, destination});
    subgraph_ = (*device_)->make_subgraph(num_nodes, std::move(typed), with_edges, disjoint, room);
  }

  void begin() {
    subgraph_->begin();
    graphs_ = nb::list();
    replies_ = nb::list();
    block_ = nb::none();
  }

  void add_seeds(int64_t type, const In<int64_t>& ids, const std::optional<In<int64_t>>& times) {
    if (times.has_value()) check_length(times->shape(0), ids.shape(0), "times");
    subgraph_->add_seeds(checked(type, num_types_, "node type"), ids.data(),
                         times.has_value() ? times->data() : nullptr,
                         static_cast<int64_t>(ids.shape(0)));
  }

  void exclude(int64_t relation, const In<int64_t>& rows, const In<int64_t>& neighbors) {
    check_length(neighbors.shape(0), rows.shape(0), "neighbors");
    subgraph_->exclude(checked(relation, num_relations_, "edge type"), rows.data(),
                       neighbors.data(), static_cast<int64_t>(rows.shape(0)));
  }

  void sample(const nb::list& graphs, HopTable hops, uint64_t run_key, uint64_t batch,
              bool cuda_graph) {
    device::SamplePlan plan;
    plan.graphs = arrays_of(graphs, device_, num_relations_);
    arrays_ = plan.graphs;
    check_hops(hops, num_relations_);
    plan.hops = std::move(hops);
    plan.run_key = run_key;
    plan.batch = batch;
    plan.as_graph = cuda_graph;
    graphs_ = graphs;
    nb::gil_scoped_release release;
    subgraph_->sample(std::move(plan));
  }

  void draw(const std::shared_ptr<PyDevicePlan>& plan, const nb::iterable& seeds, uint64_t run_key,
            uint64_t batch, const nb::iterable& excluded, nb::object block, uintptr_t address,
            int64_t words, bool staged, bool merged, const std::optional<PyLinks>& links) {
    const device::SamplePlan& common = plan->get();
    if (plan->device() != device_) throw nb::value_error("the plan is one of another device");
    check_length(common.graphs.size(), num_relations_, "graphs of the plan");
    begin();
    for (const nb::handle set : seeds) {
      add_seeds(nb::cast<int64_t>(set[0]), nb::cast<In<int64_t>>(set[1]),
                nb::cast<std::optional<In<int64_t>>>(set[2]));
    }
    for (const nb::handle edges : excluded) {
      exclude(nb::cast<int64_t>(edges[0]), nb::cast<In<int64_t>>(edges[1]),
              nb::cast<In<int64_t>>(edges[2]));
    }
    if (links.has_value()) {
      if (merged) throw nb::value_error("batches of links are not merged");
      subgraph_->add_links(checked_links(*links, device_, num_nodes_, num_relations_));
      link_plan_ = std::get<0>(*links);
    }
    device::SamplePlan own = common;
    own.run_key = run_key;
    own.batch = batch;
    own.block.words = reinterpret_cast<int64_t*>(address);
    own.block.capacity = words;
    if (own.block.padding.is_there()) {
      check_length(own.block.padding.nodes.size(), num_types_, "nodes of padding");
      if (plan->disjoint() != disjoint_) throw nb::value_error("the plan pads other batches");
      if (words != 0 && words < plan->block_words()) {
        throw nb::value_error("a padded batch needs a block of `block_words` entries");
      }
    }
    if (merged) own.leave_draws();
    const device::Program& program = own.program;
    if (program.is_there()) {
      if (disjoint_ || merged || num_types_ != 1) {
        throw nb::value_error(
            "programs draw from one node type, and no disjoint or merged batches");
      }
      if (program.column_sums != nullptr) {
        check_length(program.num_sums, num_nodes_[0], "column_sums of the program");
      }
    }
    for (const device::EdgeTarget& edge : own.block.edges) {
      if (edge.is_named != 0 && !with_edges_) {
        throw nb::value_error("edges are not recorded: with_edges is False");
      }
    }
    plan_ = plan;
    graphs_ = plan->graphs();
    arrays_ = common.graphs;
    block_ = std::move(block);
    nb::gil_scoped_release release;
    if (staged) {
      subgraph_->stage(std::move(own));
    } else {
      subgraph_->sample(std::move(own));
    }
  }

  void merge(uintptr_t counts, uintptr_t begins, uintptr_t entries, int64_t num_rows,
             nb::object owner) {
    replies_.append(std::move(owner));
    nb::gil_scoped_release release;
    subgraph_->merge({reinterpret_cast<const int64_t*>(counts),
                      reinterpret_cast<const int64_t*>(begins),
                      reinterpret_cast<const int64_t*>(entries), num_rows});
  }
  int64_t frontier_size(int64_t type) {
    const int32_t checked_type = checked(type, num_types_, "node type");
    nb::gil_scoped_release release;
    return subgraph_->frontier_size(checked_type);
  }
  void write_frontier(int64_t type, uintptr_t keys, uintptr_t times) {
    subgraph_->write_frontier(checked(type, num_types_, "node type"),
                              reinterpret_cast<int64_t*>(keys), reinterpret_cast<int64_t*>(times));
  }

  bool settle() {
    nb::gil_scoped_release release;
    return subgraph_->settle();
  }
  bool lacks_negatives() {
    nb::gil_scoped_release release;
    return subgraph_->lacks_negatives();
  }
  bool leave_unchecked() { return subgraph_->leave_unchecked(); }
  void check_all() {
    nb::gil_scoped_release release;
    subgraph_->check_all();
  }
  void launch() { subgraph_->launch(); }
  void collect() { subgraph_->collect(); }

  nb::object take_block() { return std::exchange(block_, nb::none()); }

  // Lengths of the arrays of a block, and what hops found.
  nb::tuple layout() {
    const device::BatchShape& batch = shape();
    const std::vector<device::EdgeTarget>& edges = edges_of_plan();
    std::vector<int64_t> lengths = batch.num_nodes;
    if (disjoint_) lengths.insert(lengths.end(), batch.num_nodes.begin(), batch.num_nodes.end());
    for (const int64_t count : batch.num_edges) lengths.push_back(2 * count);
    for (std::size_t r = 0; r < num_relations_; ++r) {
      if (edges[r].is_named != 0) lengths.push_back(batch.num_edges[r]);
    }
    for (std::size_t r = 0; r < num_relations_; ++r) {
      if (edges[r].has_values != 0) lengths.push_back(edges[r].value_words(batch.num_edges[r]));
    }
    const int64_t words = device::words_of(batch, disjoint_, edges);
    plan_->note(words);
    return nb::make_tuple(lengths, words, batch.nodes_per_hop, batch.edges_per_hop);
  }

  void write_block(uintptr_t address) {
    const device::BatchShape& batch = shape();
    const std::vector<device::EdgeTarget>& edges = edges_of_plan();
    auto* at = reinterpret_cast<int64_t*>(address);
    const auto take = [&at](int64_t count) { return std::exchange(at, at + count); };
    device::BatchOut out;
    for (const int64_t count : batch.num_nodes) out.nodes.push_back(take(count));
    if (disjoint_) {
      for (const int64_t count : batch.num_nodes) out.trees.push_back(take(count));
    }
    for (const int64_t count : batch.num_edges) {
      out.rows.push_back(take(count));
      out.cols.push_back(take(count));
    }
    if (plan_->get().block.backward) out.rows.swap(out.cols);
    for (std::size_t r = 0; r < num_relations_; ++r) {
      out.edges.push_back(edges[r].is_named != 0 ? take(batch.num_edges[r]) : nullptr);
      out.names.push_back(edges[r].names);
    }
    for (std::size_t r = 0; r < num_relations_; ++r) {
      auto* const words = take(edges[r].value_words(batch.num_edges[r]));
      out.values.push_back(edges[r].has_values != 0 ? reinterpret_cast<float*>(words) : nullptr);
    }
    subgraph_->write(out);
  }

  void induce(const nb::list& graphs) {
    const std::vector<device::GraphArrays> arrays = arrays_of(graphs, device_, num_relations_);
    nb::gil_scoped_release release;
    subgraph_->induce(arrays);
  }

  void add_reverses(const std::vector<std::tuple<int32_t, int32_t, bool>>& reversals,
                    bool keep_edges) {
    std::vector<Reversal> typed;
    for (const auto& [relation, reverse, mirror] : reversals) {
      typed.push_back({checked(relation, num_relations_, "edge type"),
                       checked(reverse, num_relations_, "edge type"), mirror});
    }
    nb::gil_scoped_release release;
    subgraph_->add_reverses(typed, keep_edges);
  }

  int64_t num_nodes(int64_t type) {
    return shape().num_nodes[static_cast<std::size_t>(checked(type, num_types_, "node type"))];
  }
  int64_t num_edges(int64_t relation) {
    return shape()
        .num_edges[static_cast<std::size_t>(checked(relation, num_relations_, "edge type"))];
  }
  std::vector<int64_t> nodes_per_hop(int64_t type) {
    return shape().nodes_per_hop[static_cast<std::size_t>(checked(type, num_types_, "node type"))];
  }
  std::vector<int64_t> edges_per_hop(int64_t relation) {
    return shape()
        .edges_per_hop[static_cast<std::size_t>(checked(relation, num_relations_, "edge type"))];
  }

  nb::tuple sizes() {
    const device::BatchShape& batch = shape();
    return nb::make_tuple(batch.num_nodes, batch.num_edges, batch.nodes_per_hop,
                          batch.edges_per_hop);
  }

  void write(const Addresses& nodes, const Addresses& ends, const Addresses& edges,
             const Addresses& trees, const Names& names, bool backward, const Addresses& values) {
    const device::BatchShape& batch = shape();
    device::BatchOut out;
    out.nodes = pointers(nodes, num_types_, "nodes");
    out.trees = pointers(trees, num_types_, "trees");
    out.rows = pointers(ends, num_relations_, "ends");
    for (std::size_t r = 0; r < out.rows.size(); ++r) {
      out.cols.push_back(out.rows[r] == nullptr ? nullptr : out.rows[r] + batch.num_edges[r]);
    }
    if (backward) out.rows.swap(out.cols);
    out.edges = pointers(edges, num_relations_, "edges");
    if (!names.empty()) check_length(names.size(), num_relations_, "names");
    out.names = checked_names(names, arrays_);
    if (!values.empty()) check_length(values.size(), num_relations_, "values");
    for (const uintptr_t address : values) out.values.push_back(reinterpret_cast<float*>(address));
    subgraph_->write(out);
  }

 private:
  // To give the GIL away takes longer than to answer, unless there is something to wait for.
  const device::BatchShape& shape() {
    if (subgraph_->is_known()) return subgraph_->shape();
    nb::gil_scoped_release release;
    return subgraph_->shape();
  }

  static std::vector<int64_t*> pointers(const Addresses& addresses, std::size_t want,
                                        const char* name) {
    if (!addresses.empty()) check_length(addresses.size(), want, name);
    std::vector<int64_t*> typed;
    for (const uintptr_t address : addresses) typed.push_back(reinterpret_cast<int64_t*>(address));
    return typed;
  }

  const std::vector<device::EdgeTarget>& edges_of_plan() const {
    if (plan_ == nullptr) throw nb::value_error("the batch was not drawn by a plan");
    return plan_->get().block.edges;
  }

  std::shared_ptr<PyDevice> device_;
  std::vector<int64_t> num_nodes_;
  std::size_t num_types_;
  std::size_t num_relations_;
  bool with_edges_;
  bool disjoint_;
  // What is being drawn from, and what is written to: it outlives the object that uses it.
  std::vector<device::GraphArrays> arrays_;
  nb::list graphs_;
  nb::list replies_;
  nb::object block_;
  std::shared_ptr<PyDevicePlan> plan_;
  std::shared_ptr<PyDeviceLinkPlan> link_plan_;
  std::unique_ptr<device::DeviceSubgraph> subgraph_;
};

}  // namespace khop::bindings
