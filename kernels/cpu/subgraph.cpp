#include "subgraph.hpp"

#include <stdexcept>

namespace khop {

Subgraph::Subgraph(const std::vector<int64_t>& num_nodes, std::vector<Relation> relations,
                   bool with_edges)
    : with_edges_(with_edges), relations_(std::move(relations)) {
  for (const Relation& r : relations_) {
    const auto count = static_cast<int32_t>(num_nodes.size());
    if (r.source < 0 || r.source >= count || r.destination < 0 || r.destination >= count) {
      throw std::invalid_argument("an edge type names a node type that does not exist");
    }
  }
  for (const int64_t count : num_nodes) nodes_.emplace_back(count);
  edges_.resize(relations_.size());
  frontiers_.resize(num_nodes.size());
  nodes_per_hop_.resize(num_nodes.size());
}

void Subgraph::begin() {
  for (NodeSet& set : nodes_) set.clear();
  for (EdgeList& list : edges_) list.clear();
  for (std::size_t t = 0; t < nodes_.size(); ++t) {
    frontiers_[t] = {};
    nodes_per_hop_[t].assign(1, 0);
  }
}

void Subgraph::add_seeds(int32_t node_type, const int64_t* ids, int64_t count) {
  NodeSet& set = nodes_[index(node_type)];
  set.add_seeds(ids, count);
  frontiers_[index(node_type)] = {0, set.size()};
  nodes_per_hop_[index(node_type)].assign(1, set.size());
}

void Subgraph::end_hop() {
  for (std::size_t t = 0; t < nodes_.size(); ++t) {
    frontiers_[t] = {frontiers_[t].end, nodes_[t].size()};
    nodes_per_hop_[t].push_back(frontiers_[t].end - frontiers_[t].begin);
  }
}

}  // namespace khop
