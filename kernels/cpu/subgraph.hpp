// The subgraph of a batch while it is drawn: a node set a node type, an edge list an edge type.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "dedup.hpp"
#include "sample.hpp"

namespace khop {

// One batch after the other is drawn into the same object, whose buffers are reused:
//   begin(); add_seeds(...); for each hop { hop(...) or merge(...) per edge type; end_hop(); }
class Subgraph {
 public:
  struct Relation {
    int32_t source;       // node type of the neighbours
    int32_t destination;  // node type whose neighbours are drawn
  };

  Subgraph(const std::vector<int64_t>& num_nodes, std::vector<Relation> relations, bool with_edges);
  Subgraph(const Subgraph&) = delete;
  Subgraph& operator=(const Subgraph&) = delete;

  void begin();
  void add_seeds(int32_t node_type, const int64_t* ids, int64_t count);

  template <class Ptr, class Col>
  void hop(int32_t relation, const CsrView<Ptr, Col>& graph, const HopSpec& spec) {
    const Relation& r = relations_[index(relation)];
    const Span frontier = frontiers_[index(r.destination)];
    sample_hop(graph, nodes_[index(r.destination)], frontier.begin, frontier.end, spec, with_edges_,
               nodes_[index(r.source)], edges_[index(relation)]);
  }

  template <class Col>
  void merge(int32_t relation, const int32_t* owners, int64_t num_owners_of,
             const std::vector<OwnerReply<Col>>& replies) {
    const Relation& r = relations_[index(relation)];
    merge_hop(owners, num_owners_of, replies, frontiers_[index(r.destination)].begin, with_edges_,
              nodes_[index(r.source)], edges_[index(relation)]);
  }

  // What the hop found becomes the next frontier.
  void end_hop();

  bool with_edges() const { return with_edges_; }
  std::size_t num_node_types() const { return nodes_.size(); }
  std::size_t num_relations() const { return edges_.size(); }
  const NodeSet& nodes(int32_t type) const { return nodes_[index(type)]; }
  const EdgeList& edges(int32_t relation) const { return edges_[index(relation)]; }
  std::pair<int64_t, int64_t> frontier(int32_t type) const {
    return {frontiers_[index(type)].begin, frontiers_[index(type)].end};
  }
  int64_t frontier_of_relation(int32_t relation) const {
    const Span f = frontiers_[index(relations_[index(relation)].destination)];
    return f.end - f.begin;
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

  bool with_edges_;
  std::vector<Relation> relations_;
  std::vector<NodeSet> nodes_;
  std::vector<EdgeList> edges_;
  std::vector<Span> frontiers_;
  std::vector<std::vector<int64_t>> nodes_per_hop_;
};

}  // namespace khop
