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

#include <cstdint>
#include <vector>

#include "khop/cpu/buffer.hpp"

namespace khop::cpu {

// An undirected graph: each edge is in the rows of both of its ends. Rows ascend, without parallel
// edges, whose weights are added up, and without self loops.
template <class Col>
struct UndirectedView {
  const int64_t* indptr;
  const Col* indices;
  const int32_t* weights;
  int64_t num_nodes;
};

template <class Col>
struct UndirectedGraph {
  Buffer<int64_t> indptr;
  Buffer<Col> indices;
  Buffer<int32_t> weights;
};

// Makes rows of neighbours, with both directions of each edge, an undirected graph. Throws
// std::length_error if an edge is there more than 2^31 - 1 times.
template <class Ptr, class Col>
void undirected(const Ptr* indptr, const Col* indices, int64_t num_nodes,
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
};

// One pass over the nodes in `order`. labels[v] is the part of node v, or num_parts if it has none
// yet; loads follow. A node for which no part has room goes where capacities are exceeded by the
// least more. Returns how many nodes changed their part.
template <class Col>
int64_t assign_pass(const UndirectedView<Col>& graph, const int64_t* order, int64_t count,
                    const Constraints& constraints, AssignScore score, int32_t* labels);

// One pass of size-constrained label propagation: a node joins the cluster of most of its
// neighbours' edges that has room, among equals its own, else the smallest number. labels[v] is
// below num_nodes; loads[c] the weight of cluster c, at most `limit` where it grows. Returns how
// many nodes moved.
template <class Col>
int64_t cluster_pass(const UndirectedView<Col>& graph, const int64_t* order, int64_t count,
                     const int32_t* node_weights, int64_t limit, Col* labels, int64_t* loads);

// The graph of clusters: labels are below num_clusters. Throws std::length_error if two clusters
// are joined by more than 2^31 - 1 edges.
template <class Col>
void contract(const UndirectedView<Col>& graph, const Col* labels, int64_t num_clusters,
              UndirectedGraph<Col>& out);

}  // namespace khop::cpu
