#include "khop/cpu/assign.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace khop::cpu {
namespace {

// What is free of a part, in units of its capacity: 20 bits.
constexpr int64_t kOne = int64_t{1} << 20;
// LDG multiplies neighbours by what is free: with this much per neighbour, and 1 for none, nodes
// without neighbours go where most is free.
constexpr uint64_t kPerNeighbor = 1024;
// Fennel's exponent is 1.5: the cost of one more node is 1.5 alpha sqrt(size).
constexpr double kFennelFactor = 1.5;

int32_t checked_weight(int64_t weight) {
  if (weight > std::numeric_limits<int32_t>::max()) {
    throw std::length_error("two nodes are joined by more than 2^31 - 1 edges");
  }
  return static_cast<int32_t>(weight);
}

// Scores of the parts for one node after the other.
class PartScores {
 public:
  PartScores(const Constraints& constraints, AssignScore score, double num_nodes,
             double total_weight)
      : c_(constraints),
        score_(score),
        free_(c_.num_constraints * c_.num_parts),
        costs_(free_.size()) {
    const double parts = c_.num_parts;
    if (num_nodes > 0 && c_.num_constraints > 0) {
      factor_ = kFennelFactor * std::sqrt(parts) * total_weight /
                (num_nodes * std::sqrt(num_nodes)) / static_cast<double>(c_.num_constraints);
    }
    scales_.assign(static_cast<std::size_t>(c_.num_constraints), 0.0);
    for (int64_t k = 0; k < c_.num_constraints; ++k) {
      double sum = 0;
      for (int32_t p = 0; p < c_.num_parts; ++p) sum += static_cast<double>(capacity(k, p));
      if (sum > 0) scales_[static_cast<std::size_t>(k)] = num_nodes / sum;
    }
    for (int32_t p = 0; p < c_.num_parts; ++p) refresh(p);
  }

  void move(int64_t node, int64_t num_nodes, int32_t part, int sign) {
    for (int64_t k = 0; k < c_.num_constraints; ++k) {
      c_.loads[k * c_.num_parts + part] += sign * int64_t{c_.weights[k * num_nodes + node]};
    }
    refresh(part);
  }

  // The part for a node that has counts[p] edges to part p, and was in `own` so far.
  int32_t choose(int64_t node, int64_t num_nodes, const int64_t* counts, int32_t own) const {
    int32_t best = -1;
    int64_t best_score = 0;
    for (int32_t p = 0; p < c_.num_parts; ++p) {
      int64_t free = kOne;
      if (!has_room(node, num_nodes, p, free)) continue;
      const int64_t score = score_of(node, num_nodes, counts[p], free, p, own);
      if (best < 0 || score > best_score) {
        best = p;
        best_score = score;
      }
    }
    return best >= 0 ? best : least_exceeded(node, num_nodes);
  }

 private:
  int64_t load(int64_t k, int32_t p) const { return c_.loads[k * c_.num_parts + p]; }
  int64_t capacity(int64_t k, int32_t p) const { return c_.capacities[k * c_.num_parts + p]; }

  void refresh(int32_t p) {
    for (int64_t k = 0; k < c_.num_constraints; ++k) {
      const int64_t room = std::max<int64_t>(capacity(k, p) - load(k, p), 0);
      const int64_t whole = std::max<int64_t>(capacity(k, p), 1);
      free_[k * c_.num_parts + p] =
          static_cast<int64_t>(static_cast<unsigned __int128>(room) * kOne / whole);
      const double scale = scales_[static_cast<std::size_t>(k)];
      const double cost = factor_ * std::sqrt(static_cast<double>(load(k, p)) * scale) * scale;
      costs_[k * c_.num_parts + p] = static_cast<int64_t>(cost * static_cast<double>(kOne));
    }
  }

  // Whether a part has room for a node; `free` becomes the least share that is free of what the
  // node takes.
  bool has_room(int64_t node, int64_t num_nodes, int32_t p, int64_t& free) const {
    for (int64_t k = 0; k < c_.num_constraints; ++k) {
      const int64_t weight = c_.weights[k * num_nodes + node];
      if (weight == 0) continue;
      if (weight > capacity(k, p) - load(k, p)) return false;
      free = std::min(free, free_[k * c_.num_parts + p]);
    }
    return true;
  }

  // Fennel's, summed over the constraints.
  int64_t cost_of(int64_t node, int64_t num_nodes, int32_t p) const {
    int64_t cost = 0;
    for (int64_t k = 0; k < c_.num_constraints; ++k) {
      cost += c_.weights[k * num_nodes + node] * costs_[k * c_.num_parts + p];
    }
    return cost;
  }

  int64_t score_of(int64_t node, int64_t num_nodes, int64_t count, int64_t free, int32_t p,
                   int32_t own) const {
    switch (score_) {
      case AssignScore::kLdg:
        return static_cast<int64_t>((static_cast<uint64_t>(count) * kPerNeighbor + 1) *
                                    static_cast<uint64_t>(free));
      case AssignScore::kFennel:
        return count * kOne - cost_of(node, num_nodes, p);
      case AssignScore::kCut:
        return count * 4 * kOne + (p == own ? 2 * kOne : 0) + free;
    }
    return 0;
  }

  // By how much more capacities are exceeded, as shares of them, with a node in a part.
  double excess(int64_t node, int64_t num_nodes, int32_t p) const {
    double more = 0;
    for (int64_t k = 0; k < c_.num_constraints; ++k) {
      const int64_t weight = c_.weights[k * num_nodes + node];
      const int64_t over = std::min(weight, load(k, p) + weight - capacity(k, p));
      if (over <= 0) continue;
      more += static_cast<double>(over) / static_cast<double>(std::max<int64_t>(capacity(k, p), 1));
    }
    return more;
  }

  // Parts that are full of different things so exchange nodes.
  int32_t least_exceeded(int64_t node, int64_t num_nodes) const {
    int32_t best = 0;
    for (int32_t p = 1; p < c_.num_parts; ++p) {
      if (excess(node, num_nodes, p) < excess(node, num_nodes, best)) best = p;
    }
    return best;
  }

  const Constraints& c_;
  AssignScore score_;
  double factor_ = 0;
  std::vector<double> scales_;  // of a constraint's loads to numbers of nodes
  Buffer<int64_t> free_;        // [num_constraints, num_parts], in units of 1 / kOne
  Buffer<int64_t> costs_;       // Fennel's, of a unit of weight, likewise
};

// Sums of weights by key, of one row at a time; keys are below `num_keys`.
class RowSums {
 public:
  explicit RowSums(int64_t num_keys) : sums_(num_keys) {
    std::fill_n(sums_.data(), num_keys, int64_t{0});
  }
  void add(int64_t key, int64_t weight) {
    if (sums_[key] == 0) keys_.push_back(key);
    sums_[key] += weight;
  }
  const std::vector<int64_t>& keys() const { return keys_; }
  std::vector<int64_t>& keys() { return keys_; }
  int64_t sum(int64_t key) const { return sums_[key]; }
  void clear() {
    for (const int64_t key : keys_) sums_[key] = 0;
    keys_.clear();
  }

 private:
  Buffer<int64_t> sums_;
  std::vector<int64_t> keys_;
};

}  // namespace

template <class Ptr, class Col>
void undirected(const Ptr* indptr, const Col* indices, int64_t num_nodes,
                UndirectedGraph<Col>& out) {
  out.indptr.clear();
  out.indptr.push_back(0);
  std::vector<Col> row;
  for (int64_t v = 0; v < num_nodes; ++v) {
    row.assign(indices + indptr[v], indices + indptr[v + 1]);
    std::sort(row.begin(), row.end());
    for (auto first = row.begin(); first != row.end();) {
      const auto last = std::upper_bound(first, row.end(), *first);
      if (*first != v) {
        out.indices.push_back(*first);
        out.weights.push_back(checked_weight(last - first));
      }
      first = last;
    }
    out.indptr.push_back(out.indices.size());
  }
}

template <class Col>
int64_t assign_pass(const UndirectedView<Col>& graph, const int64_t* order, int64_t count,
                    const Constraints& constraints, AssignScore score, int32_t* labels) {
  double total = 0;  // of whole numbers below 2^53: exact
  for (int64_t e = 0; e < graph.indptr[graph.num_nodes]; ++e) total += graph.weights[e];
  PartScores scores(constraints, score, static_cast<double>(graph.num_nodes), total / 2);
  std::vector<int64_t> counts(static_cast<std::size_t>(constraints.num_parts) + 1, 0);
  int64_t moved = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t v = order[i];
    const int32_t own = labels[v];
    if (own < constraints.num_parts) scores.move(v, graph.num_nodes, own, -1);
    for (int64_t e = graph.indptr[v]; e < graph.indptr[v + 1]; ++e) {
      counts[static_cast<std::size_t>(labels[graph.indices[e]])] += graph.weights[e];
    }
    const int32_t part = scores.choose(v, graph.num_nodes, counts.data(), own);
    scores.move(v, graph.num_nodes, part, 1);
    labels[v] = part;
    moved += part != own;
    std::fill(counts.begin(), counts.end(), 0);
  }
  return moved;
}

template <class Col>
int64_t cluster_pass(const UndirectedView<Col>& graph, const int64_t* order, int64_t count,
                     const int32_t* node_weights, int64_t limit, Col* labels, int64_t* loads) {
  RowSums sums(graph.num_nodes);
  int64_t moved = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t v = order[i];
    const int64_t own = labels[v];
    for (int64_t e = graph.indptr[v]; e < graph.indptr[v + 1]; ++e) {
      sums.add(labels[graph.indices[e]], graph.weights[e]);
    }
    int64_t best = own;
    for (const int64_t key : sums.keys()) {
      if (key == own || loads[key] + node_weights[v] > limit) continue;
      const int64_t gain = sums.sum(key) - sums.sum(best);
      if (gain > 0 || (gain == 0 && best != own && key < best)) best = key;
    }
    if (best != own) {
      loads[own] -= node_weights[v];
      loads[best] += node_weights[v];
      labels[v] = static_cast<Col>(best);
      ++moved;
    }
    sums.clear();
  }
  return moved;
}

template <class Col>
void contract(const UndirectedView<Col>& graph, const Col* labels, int64_t num_clusters,
              UndirectedGraph<Col>& out) {
  // Nodes, cluster by cluster.
  Buffer<int64_t> begins(num_clusters + 1);
  std::fill_n(begins.data(), num_clusters + 1, int64_t{0});
  for (int64_t v = 0; v < graph.num_nodes; ++v) ++begins[labels[v] + 1];
  for (int64_t c = 0; c < num_clusters; ++c) begins[c + 1] += begins[c];
  Buffer<int64_t> nodes(graph.num_nodes);
  for (int64_t v = 0; v < graph.num_nodes; ++v) nodes[begins[labels[v]]++] = v;

  RowSums sums(num_clusters);
  out.indptr.clear();
  out.indptr.push_back(0);
  for (int64_t c = 0, first = 0; c < num_clusters; first = begins[c++]) {
    for (int64_t i = first; i < begins[c]; ++i) {
      const int64_t v = nodes[i];
      for (int64_t e = graph.indptr[v]; e < graph.indptr[v + 1]; ++e) {
        const int64_t other = labels[graph.indices[e]];
        if (other != c) sums.add(other, graph.weights[e]);
      }
    }
    std::sort(sums.keys().begin(), sums.keys().end());
    for (const int64_t other : sums.keys()) {
      out.indices.push_back(static_cast<Col>(other));
      out.weights.push_back(checked_weight(sums.sum(other)));
    }
    sums.clear();
    out.indptr.push_back(out.indices.size());
  }
}

#define KHOP_INSTANTIATE(Col)                                                             \
  template void undirected<int32_t, Col>(const int32_t*, const Col*, int64_t,             \
                                         UndirectedGraph<Col>&);                          \
  template void undirected<int64_t, Col>(const int64_t*, const Col*, int64_t,             \
                                         UndirectedGraph<Col>&);                          \
  template int64_t assign_pass<Col>(const UndirectedView<Col>&, const int64_t*, int64_t,  \
                                    const Constraints&, AssignScore, int32_t*);           \
  template int64_t cluster_pass<Col>(const UndirectedView<Col>&, const int64_t*, int64_t, \
                                     const int32_t*, int64_t, Col*, int64_t*);            \
  template void contract<Col>(const UndirectedView<Col>&, const Col*, int64_t,            \
                              UndirectedGraph<Col>&);
KHOP_INSTANTIATE(int32_t)
KHOP_INSTANTIATE(int64_t)
#undef KHOP_INSTANTIATE

}  // namespace khop::cpu
