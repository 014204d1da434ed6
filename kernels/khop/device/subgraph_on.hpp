// A batch's subgraph on a device made of a backend: what is made of what was drawn.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "khop/device/edge_lists.hpp"
#include "khop/device/sample.hpp"
#include "khop/device/steps/induce.hpp"
#include "khop/device/steps/write.hpp"
#include "khop/device/subgraph.hpp"

namespace khop::device {

template <class Backend>
class SubgraphOn final : public DeviceSubgraph {
 public:
  SubgraphOn(Backend& backend, const std::vector<int64_t>& num_nodes,
             std::vector<Relation> relations, bool with_edges, bool disjoint, int64_t room)
      : backend_(backend),
        batch_(backend, num_nodes, std::move(relations), with_edges, disjoint, room),
        members_(backend) {
    for (std::size_t r = 0; r < batch_.relations().size(); ++r) lists_.emplace_back(backend);
  }

  void begin() override { batch_.begin(); }
  void add_seeds(int32_t node_type, const int64_t* ids, const int64_t* times,
                 int64_t count) override {
    batch_.inputs().add_seeds(node_type, ids, times, count);
  }
  void add_links(const LinkBatch& links) override { batch_.inputs().add_links(links); }
  void exclude(int32_t relation, const int64_t* rows, const int64_t* neighbors,
               int64_t count) override {
    batch_.inputs().exclude(relation, rows, neighbors, count);
  }
  void sample(SamplePlan plan) override {
    [[maybe_unused]] const auto on = backend_.on_device();
    batch_.sample(std::move(plan));
  }

  bool settle() override {
    if (!batch_.wait()) return false;
    finish();
    const BatchBlock* const block = batch_.block();
    if (block != nullptr && block->padding.is_there()) return batch_.is_padded();
    return block != nullptr && words_of(shape_, batch_.disjoint(), block->edges) <= block->capacity;
  }
  bool lacks_negatives() override { return !finish_unless_lacking(); }
  bool leave_unchecked() override { return batch_.leave_unchecked(); }
  void check_all() override { batch_.check_all(); }
  void stage(SamplePlan plan) override {
    [[maybe_unused]] const auto on = backend_.on_device();
    batch_.stage(std::move(plan));
  }
  void launch() override {
    [[maybe_unused]] const auto on = backend_.on_device();
    batch_.launch();
  }
  void collect() override {
    [[maybe_unused]] const auto on = backend_.on_device();
    batch_.collect();
  }
  void merge(const HopReplies& replies) override {
    [[maybe_unused]] const auto on = backend_.on_device();
    batch_.merge(replies);
  }
  int64_t frontier_size(int32_t node_type) override {
    finish();
    return batch_.frontier_size(node_type);
  }
  void write_frontier(int32_t node_type, int64_t* keys, int64_t* times) override {
    [[maybe_unused]] const auto on = backend_.on_device();
    finish();
    batch_.write_frontier(node_type, keys, times);
  }
  bool is_known() const override { return batch_.is_drawn(); }
  const BatchShape& shape() override {
    finish();
    return shape_;
  }

  void induce(const std::vector<GraphArrays>& graphs) override {
    [[maybe_unused]] const auto on = backend_.on_device();
    finish();
    for (std::size_t r = 0; r < batch_.relations().size(); ++r) {
      induce_relation(r, graphs[r].view());
    }
  }

  void add_reverses(const std::vector<Reversal>& reversals, bool keep_edges) override {
    [[maybe_unused]] const auto on = backend_.on_device();
    finish();
    for (const Reversal& r : reversals) {
      const bool lost_edges = batch_.with_edges() && lists_[index(r.relation)].lost_edges();
      check_reversal(batch_.relations(), r, keep_edges, lost_edges);
    }
    std::vector<std::pair<std::size_t, EdgeListOn<Backend>>> results;
    for (const Reversal& r : reversals) {
      const EdgeArrays own = listed(index(r.relation));
      const EdgeArrays reversed = listed(index(r.reverse));
      EdgeListOn<Backend> result(backend_);
      result.join(own, shape_.num_edges[index(r.relation)], reversed,
                  shape_.num_edges[index(r.reverse)], keep_edges && batch_.with_edges(),
                  num_nodes_of(relation(index(r.relation)).destination));
      if (r.mirror) results.emplace_back(index(r.reverse), result.mirrored());
      results.emplace_back(index(r.relation), std::move(result));
    }
    for (auto& [r, list] : results) take_list(r, std::move(list), {});
  }

  void write(const BatchOut& out) override {
    [[maybe_unused]] const auto on = backend_.on_device();
    finish();
    PieceWriter<Backend> writer(backend_);
    add_nodes(writer, out);
    for (std::size_t r = 0; r < lists_.size(); ++r) add_edges(writer, out, r);
    writer.write();
  }

 private:
  static std::size_t index(int32_t i) { return static_cast<std::size_t>(i); }

  template <class T>
  static T entry(const std::vector<T>& entries, std::size_t i) {
    return i < entries.size() ? entries[i] : T{};
  }

  void add_nodes(PieceWriter<Backend>& writer, const BatchOut& out) {
    for (std::size_t t = 0; t < shape_.num_nodes.size(); ++t) {
      int64_t* const ids = entry(out.nodes, t);
      int64_t* const trees = entry(out.trees, t);
      if (ids == nullptr && trees == nullptr) continue;
      const TypeMemory<Backend>& type = batch_.type(static_cast<int32_t>(t));
      writer.add(NodePiece{type.buffer().nodes, ids, trees, type.id_bits(), batch_.disjoint()},
                 shape_.num_nodes[t]);
    }
  }

  void add_edges(PieceWriter<Backend>& writer, const BatchOut& out, std::size_t r) {
    int64_t* const row = entry(out.rows, r);
    int64_t* const col = entry(out.cols, r);
    int64_t* const named = entry(out.edges, r);
    float* const valued = entry(out.values, r);
    const bool with_ends = row != nullptr && col != nullptr;
    if (named != nullptr && (!batch_.with_edges() || lists_[r].lost_edges())) {
      throw std::invalid_argument("edges were not recorded: with_edges is False");
    }
    if (valued != nullptr && batch_.buffer(relation(r).source).values == nullptr) {
      throw std::invalid_argument("edges have no values: they were not drawn by a program");
    }
    if (!with_ends && named == nullptr && valued == nullptr) return;
    for_stretches(r, [&](const EdgeArrays& from, int64_t place, int64_t count) {
      writer.add(EdgePiece{from.sources, from.destinations, with_ends ? row + place : nullptr,
                           with_ends ? col + place : nullptr, from.edges, entry(out.names, r),
                           named == nullptr ? nullptr : named + place, from.values,
                           valued == nullptr ? nullptr : valued + place},
                 count);
    });
  }

  void finish() {
    if (!finish_unless_lacking()) {
      throw std::runtime_error("the batch lacks strict negatives: the host must choose them");
    }
  }
  bool finish_unless_lacking() {
    if (batch_.is_drawn()) return true;
    [[maybe_unused]] const auto on = backend_.on_device();
    if (!batch_.finish()) return false;
    shape_ = batch_.shape();
    for (auto& list : lists_) list.clear();
    return true;
  }

  Relation relation(std::size_t r) const { return batch_.relations()[r]; }

  int64_t num_nodes_of(int32_t type) const { return shape_.num_nodes[index(type)]; }

  // Calls f(arrays, place, count) for the stretches that an edge type's edges lie in.
  template <class F>
  void for_stretches(std::size_t r, F&& f) {
    if (lists_[r].is_there()) {
      f(lists_[r].arrays(), 0, shape_.num_edges[r]);
      return;
    }
    const SampleBuffer buffer = batch_.buffer(relation(r).source);
    int64_t place = 0;
    for (std::size_t h = 0; h < batch_.num_hops(); ++h) {
      const auto& [first, count] = batch_.record(h, r);
      f(EdgeArrays{buffer.numbers + first, buffer.destinations + first,
                   batch_.with_edges() ? buffer.edges + first : nullptr,
                   buffer.values == nullptr ? nullptr : buffer.values + first},
        place, count);
      place += count;
    }
  }

  // An edge type's edges in one piece.
  EdgeArrays listed(std::size_t r) {
    if (!lists_[r].is_there()) {
      EdgeListOn<Backend> list(backend_);
      list.make(shape_.num_edges[r], batch_.with_edges());
      for_stretches(r, [&](const EdgeArrays& from, int64_t place, int64_t count) {
        list.copy(from, place, count);
      });
      lists_[r] = std::move(list);
    }
    return lists_[r].arrays();
  }

  void take_list(std::size_t r, EdgeListOn<Backend> list, std::vector<int64_t> per_hop) {
    shape_.num_edges[r] = list.size();
    shape_.edges_per_hop[r] = std::move(per_hop);
    lists_[r] = std::move(list);
  }

  void induce_relation(std::size_t r, const DeviceCsr& graph) {
    const Count rows{num_nodes_of(relation(r).destination)};
    const FrontierView nodes = batch_.nodes_of(r);
    CandidateEdges<Backend>& work = members_;
    work.reserve(rows.most, 0);
    backend_.run(rows, SpanRows{graph, nodes, batch_.device_error(), work.begins(), work.counts()});
    Count found = work.span(backend_, rows);
    int64_t total = 0;
    backend_.download(&total, found.total, sizeof(total));
    work.reserve(rows.most, total);
    found.most = total;
    const int32_t source = relation(r).source;
    const int64_t* const num_rows = &batch_.state(relation(r).destination)->nodes;
    const MemberEdges members{graph,
                              nodes,
                              work.candidates(num_rows),
                              batch_.excluded(r),
                              batch_.buffer(source),
                              batch_.state(source)};
    EdgeListOn<Backend> list(backend_);
    int64_t count = 0;
    if (total > 0) {
      work.rank(backend_, found, members);
      backend_.download(&count, work.num_kept(), sizeof(count));
    }
    list.make(count, batch_.with_edges());
    if (count > 0) {
      backend_.run(found, WriteMemberEdges{members, work.ranks(), list.arrays()});
    }
    take_list(r, std::move(list), {count});
  }

  Backend& backend_;
  BatchOn<Backend> batch_;
  BatchShape shape_;
  std::vector<EdgeListOn<Backend>> lists_;  // of edges that are not in order of hops any more
  CandidateEdges<Backend> members_;         // edges of the batch's nodes
};

}  // namespace khop::device
