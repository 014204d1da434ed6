// Assignment of nodes to parts, and to clusters, one node after the other.
//
// A pass visits nodes in a given order and puts each where the score of its neighbours there is
// highest and there is room; passes over the last result ("restreaming") improve it. All arithmetic
// that decides is of integers, or of correctly rounded products and roots, so that a cut is the
// same on any machine.
//
// Stanton and Kliot, "Streaming Graph Partitioning for Large Distributed Graphs" (KDD 2012): linear
// deterministic greedy; Tsourakakis et al., "FENNEL" (WSDM 2014); Nishimura and Ugander,
// "Restreaming Graph Partitioning" (KDD 2013); Meyerhenke et al., "Partitioning Complex Networks
// via Size-Constrained Clustering" (SEA 2014).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "khop/cpu/buffer.hpp"
#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {

// Rows of an undirected graph, [first_node, first_node + num_rows): each edge is in the rows of
// both of its ends. Rows ascend, without parallel edges, whose weights are added up, and without
// self loops. `indptr` begins with 0.
template <class Col>
struct UndirectedRows {
  int64_t first_node;
  int64_t num_rows;
  const int64_t* indptr;
  const Col* indices;
  const int32_t* weights;

  int64_t begin(int64_t node) const { return indptr[node - first_node]; }
  int64_t end(int64_t node) const { return indptr[node - first_node + 1]; }
};

template <class Col>
struct UndirectedGraph {
  Buffer<int64_t> indptr;
  Buffer<Col> indices;
  Buffer<int32_t> weights;
};

// Makes rows of neighbours, with both directions of each edge, rows of an undirected graph. Throws
// std::length_error if an edge is there more than 2^31 - 1 times.
template <class Ptr, class Col>
void undirected(const Ptr* indptr, const Col* indices, int64_t first_node, int64_t num_rows,
                UndirectedGraph<Col>& out);

// Where a node goes, of the parts that have room for it.
enum class AssignScore : int32_t {
  kLdg,     // neighbours there, times the share of the part that is free
  kFennel,  // neighbours there, less a cost that grows with the root of the part's size
  kCut,     // neighbours there; among equals where it is, then where most is free
};

// What parts hold of each constraint: [num_constraints, num_parts] loads and capacities, and
// [num_constraints, num_nodes] weights of nodes, none below 0.
struct Constraints {
  const int32_t* weights;
  const int64_t* capacities;
  int64_t* loads;
  int64_t num_constraints;
  int32_t num_parts;
  int64_t num_nodes;
};

// Scores of the parts for one node after the other.
class PartScores {
 public:
  // `num_edges`: of the graph, parallel ones counted.
  PartScores(const Constraints& constraints, AssignScore score, double num_edges);

  // Puts a node into a part (sign 1), or takes it out (-1).
  void move(int64_t node, int32_t part, int sign);

  // The part for a node that has counts[p] edges to part p, and was in `own` so far.
  int32_t choose(int64_t node, const int64_t* counts, int32_t own) const;

  int32_t num_parts() const { return c_.num_parts; }

 private:
  int64_t weight(int64_t k, int64_t node) const { return c_.weights[k * c_.num_nodes + node]; }
  int64_t load(int64_t k, int32_t p) const { return c_.loads[k * c_.num_parts + p]; }
  int64_t capacity(int64_t k, int32_t p) const { return c_.capacities[k * c_.num_parts + p]; }
  void refresh(int32_t p);
  bool has_room(int64_t node, int32_t p, int64_t& free) const;
  int64_t cost_of(int64_t node, int32_t p) const;
  int64_t score_of(int64_t node, int64_t count, int64_t free, int32_t p, int32_t own) const;
  double excess(int64_t node, int32_t p) const;
  int32_t least_exceeded(int64_t node) const;

  Constraints c_;
  AssignScore score_;
  double factor_ = 0;
  std::vector<double> scales_;  // of a constraint's loads to numbers of nodes
  Buffer<int64_t> free_;        // [num_constraints, num_parts], in units of 1 / 2^20
  Buffer<int64_t> costs_;       // Fennel's, of a unit of weight, likewise
};

// Visits the nodes in `order`, all of which have their rows here. labels[v] is the part of node v,
// or num_parts if it has none yet; loads follow. A node for which no part has room goes where
// capacities are exceeded by the least more. Returns how many nodes changed their part.
template <class Col>
int64_t assign_nodes(const UndirectedRows<Col>& rows, const int64_t* order, int64_t count,
                     PartScores& scores, int32_t* labels);

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
  void prefetch(int64_t key) const { prefetch_line_to_write(&sums_[key]); }
  const std::vector<int64_t>& keys() const { return keys_; }
  int64_t sum(int64_t key) const { return sums_[key]; }
  void clear() {
    for (const int64_t key : keys_) sums_[key] = 0;
    keys_.clear();
  }

 private:
  Buffer<int64_t> sums_;
  std::vector<int64_t> keys_;
};

// Size-constrained label propagation, of the nodes in `order`, all of which have their rows here:
// a node joins the cluster of most of its neighbours' edges that has room, among equals its own,
// else the smallest number. loads[c] is the weight of cluster c, at most `limit` where it grows.
// Returns how many nodes moved.
template <class Col>
int64_t cluster_nodes(const UndirectedRows<Col>& rows, const int64_t* order, int64_t count,
                      const int32_t* node_weights, int64_t limit, Col* labels, int64_t* loads,
                      RowSums& sums);

}  // namespace khop::cpu
