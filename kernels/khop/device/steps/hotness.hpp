// One hop of the hotness recursion. What a node's neighbours add to it is added in their order, as
// the CPU adds it: the sums of doubles depend on that.
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"
#include "khop/core/hotness.hpp"
#include "khop/core/search.hpp"
#include "khop/device/steps/backend.hpp"
#include "khop/device/steps/memory.hpp"

namespace khop::device {

// What each row adds to its neighbours.
template <class Ptr, class Col>
struct FindTerms {
  CsrView<Ptr, Col> graph;
  const double* frontier;
  int64_t fanout;
  bool replace;
  double* terms;
  uint64_t* first_corrupt;

  KHOP_HD void operator()(int64_t row) const {
    const auto begin = static_cast<int64_t>(graph.indptr[row]);
    const auto end = static_cast<int64_t>(graph.indptr[row + 1]);
    if (!graph.row_is_sound(begin, end)) {
      atomic_min(first_corrupt, static_cast<uint64_t>(row));
      return;
    }
    if (!is_drawn_from(frontier[row], end - begin, fanout)) return;
    terms[row] = log_probability_of_missing(frontier[row], end - begin, fanout, replace);
  }
};

// Keys each edge by its neighbour; edges of rows that add nothing come last.
template <class Ptr, class Col>
struct KeyByNeighbor {
  CsrView<Ptr, Col> graph;
  const double* frontier;
  int64_t fanout;
  int64_t num_nodes;
  int64_t begin;  // the first of these edges
  uint64_t* neighbors;
  int64_t* rows;
  uint64_t* first_bad;

  KHOP_HD void operator()(int64_t item) const {
    const int64_t e = begin + item;
    neighbors[item] = static_cast<uint64_t>(num_nodes);
    // Outside all rows, if row pointers are corrupt: rows need not be in order then.
    const int64_t row = first_above(graph.indptr, graph.num_rows + 1, e) - 1;
    if (row < 0 || row >= graph.num_rows) return;
    const auto degree =
        static_cast<int64_t>(graph.indptr[row + 1]) - static_cast<int64_t>(graph.indptr[row]);
    if (!is_drawn_from(frontier[row], degree, fanout)) return;
    const auto neighbor = static_cast<int64_t>(graph.indices[e]);
    if (neighbor < 0 || neighbor >= num_nodes) {
      atomic_min(first_bad, static_cast<uint64_t>(e));
      return;
    }
    neighbors[item] = static_cast<uint64_t>(neighbor);
    rows[item] = row;
  }
};

// Lays the terms of a node side by side: the thread that adds them then reads ahead of itself.
struct PlaceTerms {
  const uint64_t* neighbors;
  const int64_t* rows;
  int64_t num_nodes;
  const double* terms;
  uint64_t* placed;

  KHOP_HD void operator()(int64_t place) const {
    if (neighbors[place] == static_cast<uint64_t>(num_nodes)) return;
    placed[place] = bits_of(terms[rows[place]]);
  }
};

// An item a node: its terms one after the other, in the order of their rows.
struct AddTerms {
  const uint64_t* neighbors;
  int64_t num_edges;
  const uint64_t* placed;
  double* log_missed;

  KHOP_HD void operator()(int64_t node) const {
    const auto id = static_cast<uint64_t>(node);
    const int64_t begin = first_not_below(neighbors, num_edges, id);
    const int64_t end = first_not_below(neighbors, num_edges, id + 1);
    if (begin == end) return;
    double sum = log_missed[node];
    for (int64_t place = begin; place < end; ++place) sum += from_bits(placed[place]);
    log_missed[node] = sum;
  }
};

// As cpu::accumulate_hotness, on arrays in device memory, for so many edges at a time: the terms of
// a node are added in their order all the same. Takes 32 bytes for each of these edges, and waits
// once, for the check of the graph. Returns a kCorruptRow, a kNoSuchNeighbor (the edge's place),
// each the first of its kind, or nothing; log_missed is left alone if there is one.
template <class Backend, class Ptr, class Col>
DeviceError accumulate_hotness(Backend& backend, const CsrView<Ptr, Col>& graph,
                               const double* frontier, int64_t fanout, bool replace,
                               int64_t edges_at_a_time, double* log_missed, int64_t num_nodes) {
  const int64_t most = graph.num_edges < edges_at_a_time ? graph.num_edges : edges_at_a_time;
  const SortMemory<Backend> memory(backend, most);
  const SortPairs pairs = memory.pairs();
  const DeviceArray<Backend, double> terms(backend, graph.num_rows);
  const FirstPlaces<Backend> first_bad(backend, 2);
  const auto key_edges = [&](int64_t begin) {
    const int64_t count = graph.num_edges - begin < most ? graph.num_edges - begin : most;
    backend.run(Count{count}, KeyByNeighbor<Ptr, Col>{graph, frontier, fanout, num_nodes, begin,
                                                      pairs.keys, pairs.values, first_bad.word(1)});
    return count;
  };
  backend.run(Count{graph.num_rows}, FindTerms<Ptr, Col>{graph, frontier, fanout, replace,
                                                         terms.data(), first_bad.word(0)});
  for (int64_t begin = 0; begin < graph.num_edges; begin += most) key_edges(begin);
  int64_t bad[2];
  first_bad.read(bad);
  if (bad[0] >= 0) return {DeviceError::kCorruptRow, bad[0]};
  if (bad[1] >= 0) return {DeviceError::kNoSuchNeighbor, bad[1]};
  for (int64_t begin = 0; begin < graph.num_edges; begin += most) {
    const int64_t count = key_edges(begin);
    backend.sort(count, pairs, bits_for(num_nodes + 1));
    backend.run(Count{count},
                PlaceTerms{pairs.keys, pairs.values, num_nodes, terms.data(), pairs.other_keys});
    backend.run(Count{num_nodes}, AddTerms{pairs.keys, count, pairs.other_keys, log_missed});
  }
  return {DeviceError::kNone, 0};
}

}  // namespace khop::device
