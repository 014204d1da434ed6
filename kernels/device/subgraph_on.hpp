// A batch's subgraph on a device made of a backend: what is made of what was drawn.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "batch_on.hpp"
#include "edge_lists.hpp"
#include "khop/parallel/induce.hpp"
#include "khop/parallel/write.hpp"
#include "subgraph.hpp"

namespace khop {

template <class Backend>
class SubgraphOn final : public DeviceSubgraph {
 public:
  SubgraphOn(Backend& backend, const std::vector<int64_t>& num_nodes,
             std::vector<DeviceRelation> relations, bool with_edges, bool disjoint, int64_t room)
      : backend_(backend),
        batch_(backend, num_nodes, std::move(relations), with_edges, disjoint, room),
        members_(backend) {
    for (std::size_t r = 0; r < batch_.relations().size(); ++r) lists_.emplace_back(backend);
  }

  void begin() override { batch_.begin(); }
  void add_seeds(int32_t node_type, const int64_t* ids, const int64_t* times,
                 int64_t count) override {
    batch_.add_seeds(node_type, ids, times, count);
  }
  void exclude(int32_t relation, const int64_t* rows, const int64_t* neighbors,
               int64_t count) override {
    batch_.exclude(relation, rows, neighbors, count);
  }
  void sample(SamplePlan plan) override { batch_.sample(std::move(plan)); }

  const BatchShape& shape() override {
    finish();
    return shape_;
  }

  void induce(const std::vector<GraphArrays>& graphs) override {
    finish();
    for (std::size_t r = 0; r < batch_.relations().size(); ++r) {
      graphs[r].visit([&](const auto& view) { induce_relation(r, view); });
    }
  }

  void add_reverses(const std::vector<Reversal>& reversals, bool keep_edges) override {
    finish();
    for (const Reversal& r : reversals) check_reversal(r, keep_edges);
    std::vector<std::pair<std::size_t, EdgeListOn<Backend>>> results;
    for (const Reversal& r : reversals) {
      const parallel::EdgeLists own = listed(index(r.relation));
      const parallel::EdgeLists reversed = listed(index(r.reverse));
      EdgeListOn<Backend> result(backend_);
      result.join(own, shape_.num_edges[index(r.relation)], reversed,
                  shape_.num_edges[index(r.reverse)], keep_edges && batch_.with_edges(),
                  num_nodes_of(relation(index(r.relation)).destination));
      if (r.mirror) results.emplace_back(index(r.reverse), result.mirrored());
      results.emplace_back(index(r.relation), std::move(result));
    }
    for (auto& [r, list] : results) take_list(r, std::move(list), {});
  }

  void write_nodes(int32_t node_type, int64_t* out) override {
    write_keys(node_type, out, nullptr);
  }
  void write_trees(int32_t node_type, int64_t* out) override {
    write_keys(node_type, nullptr, out);
  }

  void write_edge_index(int32_t relation, int64_t* row, int64_t* col) override {
    finish();
    for_stretches(index(relation),
                  [&](const parallel::EdgeLists& from, int64_t place, int64_t count) {
                    backend_.run(Count{count}, parallel::WriteEnds{from.sources, from.destinations,
                                                                   row + place, col + place});
                  });
  }

  void write_edges(int32_t relation, const void* names, int name_width, int64_t num_names,
                   int64_t* out) override {
    finish();
    if (!batch_.with_edges() || lists_[index(relation)].lost_edges()) {
      throw std::invalid_argument("edges were not recorded: with_edges is False");
    }
    for_stretches(
        index(relation), [&](const parallel::EdgeLists& from, int64_t place, int64_t count) {
          const auto write = [&](auto* typed) {
            using Name = std::remove_const_t<std::remove_pointer_t<decltype(typed)>>;
            backend_.run(Count{count},
                         parallel::WriteNames<Name>{from.edges, typed, num_names, out + place,
                                                    batch_.head().device_fault()});
          };
          name_width == 4 ? write(static_cast<const int32_t*>(names))
                          : write(static_cast<const int64_t*>(names));
        });
    if (names == nullptr) return;
    batch_.head().download();
    check_fault(batch_.head().fault());
  }

 private:
  static std::size_t index(int32_t i) { return static_cast<std::size_t>(i); }

  void finish() {
    if (!batch_.finish()) return;
    shape_ = batch_.shape();
    for (auto& list : lists_) list.clear();
  }

  DeviceRelation relation(std::size_t r) const { return batch_.relations()[r]; }

  int64_t num_nodes_of(int32_t type) const { return shape_.num_nodes[index(type)]; }

  // Calls f(arrays, place, count) for the stretches that an edge type's edges lie in.
  template <class F>
  void for_stretches(std::size_t r, F&& f) {
    if (lists_[r].is_there()) {
      f(lists_[r].arrays(), 0, shape_.num_edges[r]);
      return;
    }
    const parallel::Stream stream = batch_.stream(relation(r).source);
    int64_t place = 0;
    for (std::size_t h = 0; h < batch_.num_hops(); ++h) {
      const auto& [first, count] = batch_.head().record(h, r);
      f(parallel::EdgeLists{stream.numbers + first, stream.destinations + first,
                            batch_.with_edges() ? stream.edges + first : nullptr},
        place, count);
      place += count;
    }
  }

  // An edge type's edges in one piece.
  parallel::EdgeLists listed(std::size_t r) {
    if (!lists_[r].is_there()) {
      EdgeListOn<Backend> list(backend_);
      list.make(shape_.num_edges[r], batch_.with_edges());
      for_stretches(r, [&](const parallel::EdgeLists& from, int64_t place, int64_t count) {
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

  template <class Ptr, class Col>
  void induce_relation(std::size_t r, const CsrView<Ptr, Col>& graph) {
    const auto* const rows = batch_.head().device_state(index(relation(r).destination));
    const Count row_count{num_nodes_of(relation(r).destination), &rows->nodes};
    const parallel::FrontierView frontier = batch_.frontier_of(r, batch_.head().device_zero());
    CandidateEdges<Backend>& work = members_;
    work.reserve(row_count.most, 0);
    backend_.run(row_count,
                 parallel::SpanRows<Ptr, Col>{graph, frontier, batch_.head().device_fault(),
                                              work.begins(), work.counts()});
    Count found = work.span(backend_, row_count);
    int64_t total = 0;
    backend_.download(&total, found.total, sizeof(total));
    work.reserve(row_count.most, total);
    found.most = total;
    const parallel::MemberEdges<Ptr, Col> members{graph, frontier, work.candidates(&rows->nodes),
                                                  batch_.holes(r),
                                                  batch_.stream(relation(r).source)};
    EdgeListOn<Backend> list(backend_);
    if (total > 0) {
      work.rank(backend_, found, members);
      int64_t count = 0;
      backend_.download(&count, work.num_kept(), sizeof(count));
      list.make(count, batch_.with_edges());
      backend_.run(found,
                   parallel::WriteMemberEdges<Ptr, Col>{members, work.ranks(), list.arrays()});
    } else {
      list.make(0, batch_.with_edges());
    }
    const int64_t size = list.size();
    take_list(r, std::move(list), {size});
  }

  void check_reversal(const Reversal& r, bool keep_edges) const {
    const DeviceRelation there = relation(index(r.relation));
    const DeviceRelation back = relation(index(r.reverse));
    if (there.source != back.destination || there.destination != back.source) {
      throw std::invalid_argument("edge type " + std::to_string(r.reverse) +
                                  " does not lead back where edge type " +
                                  std::to_string(r.relation) + " comes from");
    }
    if (keep_edges && (r.relation != r.reverse || r.mirror)) {
      throw std::invalid_argument(
          "only edges of one type keep their numbers beside their reverses");
    }
    if (keep_edges && batch_.with_edges() && lists_[index(r.relation)].lost_edges()) {
      throw std::invalid_argument("edges have lost their numbers: reverses were added before");
    }
  }

  void write_keys(int32_t node_type, int64_t* ids, int64_t* trees) {
    finish();
    const TypeMemory<Backend>& type = batch_.type(node_type);
    backend_.run(Count{num_nodes_of(node_type)},
                 parallel::WriteNodes{type.stream(nullptr).nodes, type.id_bits(), batch_.disjoint(),
                                      ids, trees});
  }

  Backend& backend_;
  BatchOn<Backend> batch_;
  BatchShape shape_;
  std::vector<EdgeListOn<Backend>> lists_;  // of edges that are not in order of hops any more
  CandidateEdges<Backend> members_;         // edges of the batch's nodes
};

}  // namespace khop
