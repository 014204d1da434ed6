// LABOR: rows of a hop that draw the same neighbours where they can (Balin & Catalyurek, "Layer-
// Neighbor Sampling", NeurIPS 2023), in its sequential Poisson form.
//
// A neighbour t has one uniform variate r_t in a hop, whatever row it is a neighbour of, and a row
// takes the k neighbours of smallest r_t (by weight: r_t / w_t), or all if it has no more: the k
// least order statistics. So rows with common neighbours draw the same ones where they can, and a
// batch has fewer nodes; each row by itself draws a uniform k-subset.
//
// r_t is a word of 64 bits that depends on the run, the batch, the hop (or on all hops alike), the
// node type and the original id of t. Quotients are compared by their products in 128 bits: exact,
// and so the same on any device.
#pragma once

#include <cstdint>

#include "khop/core/eligible.hpp"
#include "khop/core/rng.hpp"

namespace khop {

// The hop number of these draws' keys: that of no hop (rng.hpp).
constexpr uint32_t kLaborHop = 0xFFFFFFFDu;

// Keys the variates of all nodes of a type in one hop. With layer dependency, hop is 0: all hops
// share them.
KHOP_HD uint64_t labor_key(uint64_t run, uint64_t batch, uint32_t node_type, uint32_t hop) {
  return step_key(step_key(run, batch, kLaborHop, node_type), 0, hop, 0);
}

// r_t of a node; `tree` tells the subgraphs of a disjoint batch apart.
KHOP_HD uint64_t labor_variate(uint64_t key, uint64_t node, uint32_t tree) {
  return first_64_bits(NodeDraws{key, node, tree}.block(0));
}

// Words that `capacity` variates take, beside their edges.
KHOP_HD int64_t labor_words(int64_t capacity, bool weighted) {
  return (weighted ? 2 : 1) * capacity;
}

// The `capacity` smallest of the variates offered (of their quotients by weight, if weighted), in a
// heap whose root is the largest of them.
template <bool kWeighted>
class SmallestVariates {
 public:
  // `words` and `edges` have room for labor_words(capacity, kWeighted) and `capacity` entries.
  KHOP_HD SmallestVariates(uint64_t* words, int64_t* edges, int64_t capacity)
      : variates_(words), weights_(words + capacity), edges_(edges), capacity_(capacity) {}

  KHOP_HD void offer(uint64_t variate, uint64_t weight, int64_t edge) {
    const Candidate candidate{variate, weight, edge};
    if (count_ < capacity_) {
      sift_up(count_++, candidate);
    } else if (is_smaller(candidate, at(0))) {
      replace_root(candidate);
    }
  }

  // Sorts the edges by number; returns how many there are. Nothing can be offered any more.
  KHOP_HD int64_t finish() {
    // Heap sort, by edge alone.
    for (int64_t i = count_ / 2; i-- > 0;) sift(i, count_);
    for (int64_t end = count_; end-- > 1;) {
      const int64_t last = edges_[0];
      edges_[0] = edges_[end];
      edges_[end] = last;
      sift(0, end);
    }
    return count_;
  }

 private:
  struct Candidate {
    uint64_t variate;
    uint64_t weight;
    int64_t edge;
  };

  // variate / weight, then edge.
  static KHOP_HD bool is_smaller(const Candidate& a, const Candidate& b) {
    if constexpr (kWeighted) {
      const uint64_t high_a = high_product(a.variate, b.weight), low_a = a.variate * b.weight;
      const uint64_t high_b = high_product(b.variate, a.weight), low_b = b.variate * a.weight;
      if (high_a != high_b) return high_a < high_b;
      if (low_a != low_b) return low_a < low_b;
    } else if (a.variate != b.variate) {
      return a.variate < b.variate;
    }
    return a.edge < b.edge;
  }

  KHOP_HD Candidate at(int64_t i) const {
    return {variates_[i], kWeighted ? weights_[i] : 1, edges_[i]};
  }
  KHOP_HD void put(int64_t i, const Candidate& candidate) {
    variates_[i] = candidate.variate;
    if constexpr (kWeighted) weights_[i] = candidate.weight;
    edges_[i] = candidate.edge;
  }

  KHOP_HD void sift_up(int64_t i, const Candidate& candidate) {
    while (i > 0) {
      const int64_t parent = (i - 1) / 2;
      const Candidate above = at(parent);
      if (is_smaller(candidate, above)) break;
      put(i, above);
      i = parent;
    }
    put(i, candidate);
  }

  // In the place of the root.
  KHOP_HD void replace_root(const Candidate& candidate) {
    int64_t i = 0;
    for (int64_t child = 1; child < count_; child = 2 * i + 1) {
      if (child + 1 < count_ && is_smaller(at(child), at(child + 1))) ++child;
      const Candidate below = at(child);
      if (is_smaller(below, candidate)) break;
      put(i, below);
      i = child;
    }
    put(i, candidate);
  }

  KHOP_HD void sift(int64_t i, int64_t end) {
    const int64_t edge = edges_[i];
    for (int64_t child = 2 * i + 1; child < end; child = 2 * i + 1) {
      if (child + 1 < end && edges_[child] < edges_[child + 1]) ++child;
      if (edges_[child] < edge) break;
      edges_[i] = edges_[child];
      i = child;
    }
    edges_[i] = edge;
  }

  uint64_t* variates_;
  uint64_t* weights_;
  int64_t* edges_;
  int64_t capacity_;
  int64_t count_ = 0;
};

// Draws at most `fanout` edges of a row, ascending; returns how many. `words` has room for
// labor_words(fanout, weighted), `out` for `fanout`.
template <bool kWeighted, class Graph>
KHOP_HD int64_t pick_labor(const Graph& graph, const Row& row,
                           const ExcludedPositions& excluded_positions, uint64_t key,
                           int64_t fanout, uint64_t* words, int64_t* out) {
  const EligibleEdges<Graph> edges(graph, row, excluded_positions, kWeighted);
  SmallestVariates<kWeighted> smallest(words, out, fanout);
  edges.take(row.begin, [&](int64_t edge) {
    const uint64_t weight = kWeighted ? edges.weights().weight(edge - row.begin) : 1;
    smallest.offer(labor_variate(key, graph.original_neighbor(edge), row.tree), weight, edge);
  });
  return smallest.finish();
}

template <class Graph>
KHOP_HD int64_t pick_labor(const Graph& graph, const Row& row,
                           const ExcludedPositions& excluded_positions, uint64_t key,
                           int64_t fanout, bool weighted, uint64_t* words, int64_t* out) {
  return weighted ? pick_labor<true>(graph, row, excluded_positions, key, fanout, words, out)
                  : pick_labor<false>(graph, row, excluded_positions, key, fanout, words, out);
}

}  // namespace khop
