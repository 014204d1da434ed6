// The subgraph of a batch while it is drawn: a node set a node type, an edge list an edge type.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "khop/core/subgraph.hpp"
#include "khop/cpu/exclude.hpp"
#include "khop/cpu/induce.hpp"
#include "khop/cpu/merge.hpp"
#include "khop/cpu/node_table.hpp"
#include "khop/cpu/sample.hpp"

namespace khop::cpu {

// One batch after the other is drawn into the same object, whose buffers are reused:
//   begin(); add_seeds(...); [exclude(...);]
//   for each hop { hop(...) or merge(...) per edge type; end_hop(); }
//   [induce(...) or merge_induced(...) per edge type, or add_reverses(...)]
//
// In a disjoint batch every seed is the root of a tree of its own: seed i, counted over all node
// types, of tree i.
class Subgraph {
 public:
  Subgraph(const std::vector<int64_t>& num_nodes, std::vector<Relation> relations, bool with_edges,
           bool disjoint);
  Subgraph(const Subgraph&) = delete;
  Subgraph& operator=(const Subgraph&) = delete;

  void begin();
  // `times` of the seeds, or null; all calls for a batch must agree.
  void add_seeds(int32_t node_type, const int64_t* ids, const int64_t* times, int64_t count);
  // Edges that this batch must not hold: (row, neighbour) pairs.
  void exclude(int32_t relation, const int64_t* rows, const int64_t* neighbors, int64_t count);

  template <class Ptr, class Col>
  void hop(int32_t relation, const CsrView<Ptr, Col>& graph, const HopOptions& options) {
    HopSpec spec(options, excluded(relation));
    spec.with_edge = with_edges_;
    sample_hop(graph, frontier(relations_[index(relation)].destination), spec, sources_of(relation),
               edges_[index(relation)]);
  }

  // From parts that together hold all rows, in the order of their rows.
  template <class Ptr, class Col>
  void hop(int32_t relation, const std::vector<CsrView<Ptr, Col>>& parts,
           const HopOptions& options) {
    HopSpec spec(options, excluded(relation));
    spec.with_edge = with_edges_;
    sample_hop(parts, frontier(relations_[index(relation)].destination), spec, sources_of(relation),
               edges_[index(relation)]);
  }

  template <class Col>
  void merge(int32_t relation, const int32_t* owners, const std::vector<OwnerReply<Col>>& replies) {
    merge_hop(owners, replies, frontier(relations_[index(relation)].destination), with_edges_,
              sources_of(relation), edges_[index(relation)]);
  }

  // What the hop found becomes the next frontier; with `all`, all nodes do, so that nodes draw anew
  // in each hop (layers).
  void end_hop(bool all = false);

  // Replaces an edge type's edges by all edges among the batch's nodes.
  template <class Ptr, class Col>
  void induce(int32_t relation, const CsrView<Ptr, Col>& graph) {
    const int32_t type = relations_[index(relation)].destination;
    const Members rows = members(type);
    InducedRows found;
    induce_rows(graph, rows.row_set(), nodes(type).size(), sources_of(relation), excluded(relation),
                with_edges_, found);
    replace(relation, std::move(found));
  }

  // As induce, with the rows scanned by their owners: owners[i] names the reply that holds node
  // i's.
  void merge_induced(int32_t relation, const int32_t* owners,
                     const std::vector<OwnerReply<int32_t>>& replies);

  // With `keep_edges`, edges keep their numbers; of an edge type that reverses itself only.
  void add_reverses(const std::vector<Reversal>& reversals, bool keep_edges);

  // Ids, trees and seed times of numbers [begin, end) of a node type.
  struct Members {
    Buffer<int64_t> ids;
    Buffer<int32_t> trees;  // empty unless disjoint
    Buffer<int64_t> times;  // empty without times
    RowSet row_set() const {
      return {ids.data(), trees.size() == 0 ? nullptr : trees.data(),
              times.size() == 0 ? nullptr : times.data()};
    }
  };
  Members members(int32_t type) const { return members(type, 0, nodes(type).size()); }
  Members members(int32_t type, int64_t begin, int64_t end) const;

  bool with_edges() const { return with_edges_; }
  bool disjoint() const { return disjoint_; }
  std::size_t num_node_types() const { return nodes_.size(); }
  std::size_t num_relations() const { return edges_.size(); }
  const NodeSet& nodes(int32_t type) const { return nodes_[index(type)]; }
  const EdgeList& edges(int32_t relation) const { return edges_[index(relation)]; }
  Relation relation(int32_t relation) const { return relations_[index(relation)]; }
  Frontier frontier(int32_t type) const {
    const Span& span = frontiers_[index(type)];
    return {nodes_[index(type)], span.begin, span.end, disjoint_,
            tree_times_.size() == 0 ? nullptr : tree_times_.data()};
  }
  // Seeds, then the nodes that each hop added.
  const std::vector<int64_t>& nodes_per_hop(int32_t type) const {
    return nodes_per_hop_[index(type)];
  }

 private:
  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
  };
  static std::size_t index(int32_t i) { return static_cast<std::size_t>(i); }
  NodeSet& sources_of(int32_t relation) {
    return nodes_[index(relations_[index(relation)].source)];
  }
  const PairSet* excluded(int32_t relation) const {
    const PairSet& pairs = excluded_[index(relation)];
    return pairs.empty() ? nullptr : &pairs;
  }
  void replace(int32_t relation, InducedRows&& found);

  bool with_edges_;
  bool disjoint_;
  std::vector<Relation> relations_;
  std::vector<NodeSet> nodes_;
  std::vector<EdgeList> edges_;
  std::vector<PairSet> excluded_;
  std::vector<Span> frontiers_;
  std::vector<std::vector<int64_t>> nodes_per_hop_;
  int64_t num_trees_ = 0;
  Buffer<int64_t> tree_times_;
};

}  // namespace khop::cpu
