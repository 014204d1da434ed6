#include "khop/cpu/assign.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "khop/cpu/prefetch.hpp"

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

// A share in units of 1 / kOne, rounded down.
int64_t share_of(int64_t part, int64_t whole) {
  if (part < (int64_t{1} << 43)) return part * kOne / whole;
  return static_cast<int64_t>(static_cast<unsigned __int128>(part) * kOne / whole);
}

}  // namespace

PartScores::PartScores(const Constraints& constraints, AssignScore score, double num_edges)
    : c_(constraints),
      score_(score),
      free_(c_.num_constraints * c_.num_parts),
      costs_(free_.size()) {
  const double parts = c_.num_parts;
  const auto num_nodes = static_cast<double>(c_.num_nodes);
  if (c_.num_nodes > 0 && c_.num_constraints > 0) {
    factor_ = kFennelFactor * std::sqrt(parts) * num_edges / (num_nodes * std::sqrt(num_nodes)) /
              static_cast<double>(c_.num_constraints);
  }
  scales_.assign(static_cast<std::size_t>(c_.num_constraints), 0.0);
  for (int64_t k = 0; k < c_.num_constraints; ++k) {
    double sum = 0;
    for (int32_t p = 0; p < c_.num_parts; ++p) sum += static_cast<double>(capacity(k, p));
    if (sum > 0) scales_[static_cast<std::size_t>(k)] = num_nodes / sum;
  }
  for (int32_t p = 0; p < c_.num_parts; ++p) refresh(p);
}

void PartScores::move(int64_t node, int32_t part, int sign) {
  for (int64_t k = 0; k < c_.num_constraints; ++k) {
    c_.loads[k * c_.num_parts + part] += sign * weight(k, node);
  }
  refresh(part);
}

int32_t PartScores::choose(int64_t node, const int64_t* counts, int32_t own) const {
  int32_t best = -1;
  int64_t best_score = 0;
  for (int32_t p = 0; p < c_.num_parts; ++p) {
    int64_t free = kOne;
    if (!has_room(node, p, free)) continue;
    const int64_t score = score_of(node, counts[p], free, p, own);
    if (best < 0 || score > best_score) {
      best = p;
      best_score = score;
    }
  }
  return best >= 0 ? best : least_exceeded(node);
}

void PartScores::refresh(int32_t p) {
  for (int64_t k = 0; k < c_.num_constraints; ++k) {
    if (score_ == AssignScore::kFennel) {
      const double scale = scales_[static_cast<std::size_t>(k)];
      const double cost = factor_ * std::sqrt(static_cast<double>(load(k, p)) * scale) * scale;
      costs_[k * c_.num_parts + p] = static_cast<int64_t>(cost * static_cast<double>(kOne));
    } else {
      const int64_t room = std::max<int64_t>(capacity(k, p) - load(k, p), 0);
      free_[k * c_.num_parts + p] = share_of(room, std::max<int64_t>(capacity(k, p), 1));
    }
  }
}

// Whether a part has room for a node; `free` becomes the least share that is free of what the node
// takes.
bool PartScores::has_room(int64_t node, int32_t p, int64_t& free) const {
  for (int64_t k = 0; k < c_.num_constraints; ++k) {
    const int64_t taken = weight(k, node);
    if (taken == 0) continue;
    if (taken > capacity(k, p) - load(k, p)) return false;
    free = std::min(free, free_[k * c_.num_parts + p]);
  }
  return true;
}

// Fennel's, summed over the constraints.
int64_t PartScores::cost_of(int64_t node, int32_t p) const {
  int64_t cost = 0;
  for (int64_t k = 0; k < c_.num_constraints; ++k) {
    cost += weight(k, node) * costs_[k * c_.num_parts + p];
  }
  return cost;
}

int64_t PartScores::score_of(int64_t node, int64_t count, int64_t free, int32_t p,
                             int32_t own) const {
  switch (score_) {
    case AssignScore::kLdg:
      return static_cast<int64_t>((static_cast<uint64_t>(count) * kPerNeighbor + 1) *
                                  static_cast<uint64_t>(free));
    case AssignScore::kFennel:
      return count * kOne - cost_of(node, p);
    case AssignScore::kCut:
      return count * 4 * kOne + (p == own ? 2 * kOne : 0) + free;
  }
  return 0;
}

// By how much more capacities are exceeded, as shares of them, with a node in a part.
double PartScores::excess(int64_t node, int32_t p) const {
  double more = 0;
  for (int64_t k = 0; k < c_.num_constraints; ++k) {
    const int64_t taken = weight(k, node);
    const int64_t over = std::min(taken, load(k, p) + taken - capacity(k, p));
    if (over <= 0) continue;
    more += static_cast<double>(over) / static_cast<double>(std::max<int64_t>(capacity(k, p), 1));
  }
  return more;
}

// Parts that are full of different things so exchange nodes.
int32_t PartScores::least_exceeded(int64_t node) const {
  int32_t best = 0;
  for (int32_t p = 1; p < c_.num_parts; ++p) {
    if (excess(node, p) < excess(node, best)) best = p;
  }
  return best;
}

template <class Ptr, class Col>
void undirected(const Ptr* indptr, const Col* indices, int64_t first_node, int64_t num_rows,
                UndirectedGraph<Col>& out) {
  out.indptr.clear();
  out.indptr.push_back(0);
  std::vector<Col> row;
  for (int64_t r = 0; r < num_rows; ++r) {
    row.assign(indices + indptr[r], indices + indptr[r + 1]);
    std::sort(row.begin(), row.end());
    for (auto first = row.begin(); first != row.end();) {
      const auto last = std::upper_bound(first, row.end(), *first);
      if (*first != first_node + r) {
        out.indices.push_back(*first);
        out.weights.push_back(checked_weight(last - first));
      }
      first = last;
    }
    out.indptr.push_back(out.indices.size());
  }
}

namespace {

// Brings the row of a node that is visited soon into the caches, then the labels of its neighbours.
template <class Col>
class RowPrefetch {
 public:
  RowPrefetch(const UndirectedRows<Col>& rows, const int64_t* order, int64_t count)
      : rows_(rows), order_(order), count_(count) {}

  template <class Label>
  void at(int64_t i, const Label* labels) const {
    if (i + kRowsAhead < count_) {
      const int64_t v = order_[i + kRowsAhead];
      const int64_t begin = rows_.begin(v);
      for (int64_t e = begin; e < last(v); e += kLine) {
        prefetch_line(&rows_.indices[e]);
        prefetch_line(&rows_.weights[e]);
      }
    }
    if (i + kLabelsAhead < count_) {
      const int64_t v = order_[i + kLabelsAhead];
      for (int64_t e = rows_.begin(v); e < last(v); ++e) {
        prefetch_line(&labels[rows_.indices[e]]);
      }
    }
  }

 private:
  static constexpr int64_t kRowsAhead = 8;
  static constexpr int64_t kLabelsAhead = 2;
  static constexpr int64_t kMost = 128;  // entries of a row
  static constexpr int64_t kLine = 64 / sizeof(Col);

  int64_t last(int64_t v) const { return std::min(rows_.end(v), rows_.begin(v) + kMost); }

  const UndirectedRows<Col>& rows_;
  const int64_t* order_;
  int64_t count_;
};

// Calls ahead(label), then f(label, weight) for each entry of a node's row. Labels are read some at
// a time, before anything is written that they could be mistaken for: then their misses overlap.
template <class Col, class Label, class Ahead, class F>
void for_each_label(const UndirectedRows<Col>& rows, int64_t v, const Label* labels, Ahead&& ahead,
                    F&& f) {
  constexpr int64_t kChunk = 64;
  Label found[kChunk];
  for (int64_t first = rows.begin(v); first < rows.end(v); first += kChunk) {
    const int64_t count = std::min(kChunk, rows.end(v) - first);
    for (int64_t j = 0; j < count; ++j) {
      found[j] = labels[rows.indices[first + j]];
      ahead(found[j]);
    }
    for (int64_t j = 0; j < count; ++j) f(found[j], rows.weights[first + j]);
  }
}

}  // namespace

template <class Col>
int64_t assign_nodes(const UndirectedRows<Col>& rows, const int64_t* order, int64_t count,
                     PartScores& scores, int32_t* labels) {
  std::vector<int64_t> counts(static_cast<std::size_t>(scores.num_parts()) + 1, 0);
  const RowPrefetch<Col> prefetch(rows, order, count);
  int64_t moved = 0;
  for (int64_t i = 0; i < count; ++i) {
    prefetch.at(i, labels);
    const int64_t v = order[i];
    const int32_t own = labels[v];
    if (own < scores.num_parts()) scores.move(v, own, -1);
    for_each_label(
        rows, v, labels, [](int32_t) {},
        [&](int32_t label, int32_t weight) { counts[static_cast<std::size_t>(label)] += weight; });
    const int32_t part = scores.choose(v, counts.data(), own);
    scores.move(v, part, 1);
    labels[v] = part;
    moved += part != own;
    std::fill(counts.begin(), counts.end(), 0);
  }
  return moved;
}

template <class Col>
int64_t cluster_nodes(const UndirectedRows<Col>& rows, const int64_t* order, int64_t count,
                      const int32_t* node_weights, int64_t limit, Col* labels, int64_t* loads,
                      RowSums& sums) {
  const RowPrefetch<Col> prefetch(rows, order, count);
  int64_t moved = 0;
  for (int64_t i = 0; i < count; ++i) {
    prefetch.at(i, labels);
    const int64_t v = order[i];
    const int64_t own = labels[v];
    for_each_label(
        rows, v, labels,
        [&](Col label) {
          sums.prefetch(label);
          prefetch_line(&loads[label]);
        },
        [&](Col label, int32_t weight) { sums.add(label, weight); });
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

#define KHOP_INSTANTIATE(Col)                                                              \
  template void undirected<int32_t, Col>(const int32_t*, const Col*, int64_t, int64_t,     \
                                         UndirectedGraph<Col>&);                           \
  template void undirected<int64_t, Col>(const int64_t*, const Col*, int64_t, int64_t,     \
                                         UndirectedGraph<Col>&);                           \
  template int64_t assign_nodes<Col>(const UndirectedRows<Col>&, const int64_t*, int64_t,  \
                                     PartScores&, int32_t*);                               \
  template int64_t cluster_nodes<Col>(const UndirectedRows<Col>&, const int64_t*, int64_t, \
                                      const int32_t*, int64_t, Col*, int64_t*, RowSums&);
KHOP_INSTANTIATE(int32_t)
KHOP_INSTANTIATE(int64_t)
#undef KHOP_INSTANTIATE

}  // namespace khop::cpu
