// Draws neighbours, hop by hop.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/core/csr.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/node_table.hpp"
#include "khop/cpu/rows.hpp"

namespace khop {

// Neighbours of some rows: row i contributes counts[i] consecutive entries.
template <class Col>
struct DrawnRows {
  Buffer<int32_t> counts;
  Buffer<Col> neighbors;
  Buffer<int64_t> edges;  // empty unless asked for
};

// Draws the neighbours of `rows`, all of which must be rows of `graph`.
// Throws std::out_of_range if one is not, std::runtime_error if the row pointers are corrupt.
template <class Ptr, class Col>
void sample_rows(const CsrView<Ptr, Col>& graph, const RowSet& rows, int64_t num_rows,
                 const HopSpec& spec, DrawnRows<Col>& out);

// The drawn edges of one edge type. Destinations are not stored edge by edge: each hop covers a
// range of destination numbers, each with its count.
struct EdgeList {
  struct Hop {
    int64_t first_destination;
    int64_t num_destinations;
    int64_t num_edges;
  };
  std::vector<Hop> hops;
  Buffer<int32_t> counts;   // a destination each
  Buffer<int32_t> sources;  // an edge each: the number of its source node
  Buffer<int64_t> edges;    // an edge each: its position in the whole graph; empty unless asked for
  Buffer<int32_t> destinations;  // an edge each, where edges are not in order of hops any more
  bool in_hop_order = true;

  void clear();
  void write_endpoints(int64_t* row, int64_t* col) const;
};

// The nodes of a hop: numbers [begin, end) of a set. `tree_times` holds the time of each tree's
// seed, null without times.
struct Frontier {
  const NodeSet& nodes;
  int64_t begin;
  int64_t end;
  bool disjoint;
  const int64_t* tree_times;
};

// Draws one hop and numbers what it finds: samples the frontier, adds its neighbours to `sources`
// (which may be the frontier's own set) and appends the edges to `out`.
template <class Ptr, class Col>
void sample_hop(const CsrView<Ptr, Col>& graph, const Frontier& frontier, const HopSpec& spec,
                NodeSet& sources, EdgeList& out);

// Neighbours that one owner drew for its share of a frontier, in frontier order.
template <class Col>
struct OwnerReply {
  const int32_t* counts;
  int64_t num_rows;
  const Col* neighbors;
  int64_t num_neighbors;
  const int64_t* edges;  // null unless asked for
};

// As sample_hop, with the neighbours drawn elsewhere: owners[i] names the reply that holds the i-th
// destination's neighbours. Throws std::invalid_argument if the replies do not cover the frontier.
template <class Col>
void merge_hop(const int32_t* owners, const std::vector<OwnerReply<Col>>& replies,
               const Frontier& frontier, bool with_edges, NodeSet& sources, EdgeList& out);

}  // namespace khop
