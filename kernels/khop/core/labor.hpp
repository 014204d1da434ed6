// LABOR: rows of a hop that draw the same neighbours where they can (Balin & Catalyurek, "Layer-
// Neighbor Sampling", NeurIPS 2023), in its sequential Poisson form.
//
// A neighbour t has one uniform number r_t in a hop, whatever row it is a neighbour of, and a row
// takes the k neighbours of smallest r_t (by weight: r_t / w_t), or all if it has no more. So rows
// with common neighbours agree on which of them to take, and a batch has fewer nodes; each row by
// itself draws a uniform k-subset.
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
constexpr uint32_t kRaceHop = 0xFFFFFFFDu;

// Keys the numbers of all nodes of a type in one hop; where all hops shall be alike, pass 0.
KHOP_HD uint64_t race_key(uint64_t run, uint64_t batch, uint32_t node_type, uint32_t hop) {
  return step_key(step_key(run, batch, kRaceHop, node_type), 0, hop, 0);
}

// r_t of a node; `tree` tells the subgraphs of a disjoint batch apart.
KHOP_HD uint64_t race_time(uint64_t key, uint64_t node, uint32_t tree) {
  return first_64_bits(NodeDraws{key, node, tree}.block(0));
}

// Words that a race of `capacity` places takes, beside its edges.
KHOP_HD int64_t race_words(int64_t capacity, bool weighted) {
  return (weighted ? 2 : 1) * capacity;
}

// The first `capacity` of those that enter, in a heap whose root is the last of them.
template <bool kWeighted>
class Race {
 public:
  // `words` and `edges` have room for race_words(capacity, kWeighted) and `capacity` entries.
  KHOP_HD Race(uint64_t* words, int64_t* edges, int64_t capacity)
      : times_(words), weights_(words + capacity), edges_(edges), capacity_(capacity) {}

  KHOP_HD void enter(uint64_t time, uint64_t weight, int64_t edge) {
    const Runner runner{time, weight, edge};
    if (count_ < capacity_) {
      rise(count_++, runner);
    } else if (is_before(runner, at(0))) {
      sink(runner);
    }
  }

  // The time that one without weight has to undercut, or equal, to get a place.
  KHOP_HD uint64_t slowest() const { return count_ < capacity_ ? ~uint64_t{0} : times_[0]; }

  // Sorts the edges; returns how many there are. The race is over then.
  KHOP_HD int64_t finish() {
    // Heap sort, by edge alone.
    for (int64_t i = count_ / 2; i-- > 0;) sift(i, count_);
    for (int64_t end = count_; end-- > 1;) {
      const int64_t largest = edges_[0];
      edges_[0] = edges_[end];
      edges_[end] = largest;
      sift(0, end);
    }
    return count_;
  }

 private:
  struct Runner {
    uint64_t time;
    uint64_t weight;
    int64_t edge;
  };

  // time / weight, then edge.
  static KHOP_HD bool is_before(const Runner& a, const Runner& b) {
    if constexpr (kWeighted) {
      const uint64_t high_a = high_product(a.time, b.weight), low_a = a.time * b.weight;
      const uint64_t high_b = high_product(b.time, a.weight), low_b = b.time * a.weight;
      if (high_a != high_b) return high_a < high_b;
      if (low_a != low_b) return low_a < low_b;
    } else if (a.time != b.time) {
      return a.time < b.time;
    }
    return a.edge < b.edge;
  }

  KHOP_HD Runner at(int64_t i) const { return {times_[i], kWeighted ? weights_[i] : 1, edges_[i]}; }
  KHOP_HD void put(int64_t i, const Runner& runner) {
    times_[i] = runner.time;
    if constexpr (kWeighted) weights_[i] = runner.weight;
    edges_[i] = runner.edge;
  }

  KHOP_HD void rise(int64_t i, const Runner& runner) {
    while (i > 0) {
      const int64_t parent = (i - 1) / 2;
      const Runner above = at(parent);
      if (is_before(runner, above)) break;
      put(i, above);
      i = parent;
    }
    put(i, runner);
  }

  // In the place of the root.
  KHOP_HD void sink(const Runner& runner) {
    int64_t i = 0;
    for (int64_t child = 1; child < count_; child = 2 * i + 1) {
      if (child + 1 < count_ && is_before(at(child), at(child + 1))) ++child;
      const Runner below = at(child);
      if (is_before(below, runner)) break;
      put(i, below);
      i = child;
    }
    put(i, runner);
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

  uint64_t* times_;
  uint64_t* weights_;
  int64_t* edges_;
  int64_t capacity_;
  int64_t count_ = 0;
};

// Draws at most `fanout` edges of a row, ascending; returns how many. `words` has room for
// race_words(fanout, weighted), `out` for `fanout`.
template <bool kWeighted, class Graph>
KHOP_HD int64_t pick_by_race(const Graph& graph, const Row& row, const Holes& holes, uint64_t key,
                             int64_t fanout, uint64_t* words, int64_t* out) {
  const EligibleEdges<Graph> edges(graph, row, holes, kWeighted);
  Race<kWeighted> race(words, out, fanout);
  edges.take(row.begin, [&](int64_t edge) {
    const uint64_t weight = kWeighted ? edges.weights().weight(edge - row.begin) : 1;
    race.enter(race_time(key, graph.original_neighbor(edge), row.tree), weight, edge);
  });
  return race.finish();
}

template <class Graph>
KHOP_HD int64_t pick_by_race(const Graph& graph, const Row& row, const Holes& holes, uint64_t key,
                             int64_t fanout, bool weighted, uint64_t* words, int64_t* out) {
  return weighted ? pick_by_race<true>(graph, row, holes, key, fanout, words, out)
                  : pick_by_race<false>(graph, row, holes, key, fanout, words, out);
}

}  // namespace khop
