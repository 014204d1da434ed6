// The edges of a batch, of one edge type, hop by hop.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/cpu/buffer.hpp"
#include "khop/cpu/node_table.hpp"

namespace khop::cpu {

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

// What a hop appends to an edge list; undone if the hop fails, so that counts and hops agree.
class AppendedEdges {
 public:
  explicit AppendedEdges(EdgeList& list)
      : list_(list),
        counts_(list.counts.size()),
        sources_(list.sources.size()),
        edges_(list.edges.size()) {}
  AppendedEdges(const AppendedEdges&) = delete;
  AppendedEdges& operator=(const AppendedEdges&) = delete;
  ~AppendedEdges() {
    if (done_) return;
    list_.counts.resize(counts_);
    list_.sources.resize(sources_);
    list_.edges.resize(edges_);
  }

  void finish(const Frontier& frontier) {
    list_.hops.push_back(
        {frontier.begin, frontier.end - frontier.begin, list_.sources.size() - sources_});
    done_ = true;
  }

 private:
  EdgeList& list_;
  int64_t counts_;
  int64_t sources_;
  int64_t edges_;
  bool done_ = false;
};

}  // namespace khop::cpu
