#include "khop/cpu/subgraph.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "khop/cpu/reverse.hpp"

namespace khop::cpu {

Subgraph::Subgraph(const std::vector<int64_t>& num_nodes, std::vector<Relation> relations,
                   bool with_edges, bool disjoint)
    : with_edges_(with_edges), disjoint_(disjoint), relations_(std::move(relations)) {
  check_relations(relations_, num_nodes.size());
  for (const int64_t count : num_nodes) nodes_.emplace_back(count, disjoint);
  edges_.resize(relations_.size());
  excluded_.resize(relations_.size());
  frontiers_.resize(num_nodes.size());
  nodes_per_hop_.resize(num_nodes.size());
}

void Subgraph::begin() {
  for (NodeSet& set : nodes_) set.clear();
  for (EdgeList& list : edges_) list.clear();
  for (PairSet& pairs : excluded_) pairs.clear();
  for (std::size_t t = 0; t < nodes_.size(); ++t) {
    frontiers_[t] = {};
    nodes_per_hop_[t].assign(1, 0);
  }
  num_trees_ = 0;
  tree_times_.clear();
}

void Subgraph::add_seeds(int32_t node_type, const int64_t* ids, const int64_t* times,
                         int64_t count) {
  NodeSet& set = nodes_[index(node_type)];
  if (!disjoint_) {
    if (times != nullptr) throw std::invalid_argument("seeds with times need a disjoint batch");
    set.add_seeds(ids, count);
  } else {
    if (num_trees_ + count > std::numeric_limits<int32_t>::max()) {
      throw std::length_error("a disjoint batch may hold at most 2^31 - 1 seeds");
    }
    if (num_trees_ > 0 && count > 0 && (times != nullptr) != (tree_times_.size() > 0)) {
      throw std::invalid_argument("either all seeds of a batch have times, or none");
    }
    set.check_ids(ids, count);
    for (NodeSet& other : nodes_) other.set_num_trees(num_trees_ + count);
    Buffer<int64_t> keys(count);
    for (int64_t i = 0; i < count; ++i) keys[i] = set.key(num_trees_ + i, ids[i]);
    set.add_seeds(keys.data(), count);
    if (times != nullptr) std::copy_n(times, count, tree_times_.extend(count));
    num_trees_ += count;
  }
  frontiers_[index(node_type)] = {0, set.size()};
  nodes_per_hop_[index(node_type)].assign(1, set.size());
}

void Subgraph::exclude(int32_t relation, const int64_t* rows, const int64_t* neighbors,
                       int64_t count) {
  excluded_[index(relation)].add(rows, neighbors, count);
}

void Subgraph::end_hop(bool all) {
  for (std::size_t t = 0; t < nodes_.size(); ++t) {
    const int64_t before = frontiers_[t].end;
    const int64_t size = nodes_[t].size();
    frontiers_[t] = {all ? 0 : before, size};
    nodes_per_hop_[t].push_back(size - before);
  }
}

Subgraph::Members Subgraph::members(int32_t type, int64_t begin, int64_t end) const {
  const NodeSet& set = nodes(type);
  const int64_t* keys = set.keys();
  Members out;
  int64_t* ids = out.ids.extend(end - begin);
  for (int64_t i = begin; i < end; ++i) ids[i - begin] = set.id_of(keys[i]);
  if (!disjoint_) return out;
  int32_t* trees = out.trees.extend(end - begin);
  for (int64_t i = begin; i < end; ++i)
    trees[i - begin] = static_cast<int32_t>(set.tree_of(keys[i]));
  if (tree_times_.size() == 0) return out;
  int64_t* times = out.times.extend(end - begin);
  for (int64_t i = begin; i < end; ++i) times[i - begin] = tree_times_[trees[i - begin]];
  return out;
}

void Subgraph::replace(int32_t relation, InducedRows&& found) {
  EdgeList& list = edges_[index(relation)];
  list.clear();
  list.hops.push_back({0, found.counts.size(), found.sources.size()});
  list.counts = std::move(found.counts);
  list.sources = std::move(found.sources);
  list.edges = std::move(found.edges);
}

void Subgraph::merge_induced(int32_t relation, const int32_t* owners,
                             const std::vector<OwnerReply<int32_t>>& replies) {
  const int64_t num_rows = nodes(relations_[index(relation)].destination).size();
  InducedRows merged;
  merge_induced_rows(owners, replies, num_rows, sources_of(relation).size(), with_edges_, merged);
  replace(relation, std::move(merged));
}

void Subgraph::add_reverses(const std::vector<Reversal>& reversals, bool keep_edges) {
  for (const Reversal& r : reversals) {
    const EdgeList& list = edges_[index(r.relation)];
    const bool lost_edges = with_edges_ && list.edges.size() != list.sources.size();
    check_reversal(relations_, r, keep_edges, lost_edges);
  }
  std::vector<std::pair<int32_t, EdgeList>> results;
  for (const Reversal& r : reversals) {
    EdgeList result;
    cpu::add_reverses(edges_[index(r.relation)], edges_[index(r.reverse)],
                      keep_edges && with_edges_, result);
    if (r.mirror) {
      EdgeList mirror;
      mirror.in_hop_order = false;
      const int64_t count = result.sources.size();
      std::copy_n(result.destinations.data(), count, mirror.sources.extend(count));
      std::copy_n(result.sources.data(), count, mirror.destinations.extend(count));
      results.emplace_back(r.reverse, std::move(mirror));
    }
    results.emplace_back(r.relation, std::move(result));
  }
  for (auto& [relation, list] : results) edges_[index(relation)] = std::move(list);
}

}  // namespace khop::cpu
