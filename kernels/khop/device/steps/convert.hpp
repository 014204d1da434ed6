// Edge list to compressed rows: a stable sort of the edges' numbers by row.
#pragma once

#include <cstdint>

#include "khop/core/id_column.hpp"
#include "khop/core/search.hpp"
#include "khop/device/steps/backend.hpp"
#include "khop/device/steps/memory.hpp"

namespace khop::device {

// What is wrong with an edge list, if anything: which map's entry, or which edge, the first one.
struct EdgeListError {
  enum Kind { kNone, kKeyMap, kNeighborMap, kEdge };
  Kind kind;
  int64_t place;
};

// A map's values must be below a number of nodes.
struct CheckMap {
  const int64_t* map;
  int64_t limit;
  uint64_t* first_bad;

  KHOP_HD void operator()(int64_t i) const {
    if (map[i] < 0 || map[i] >= limit) atomic_min(first_bad, static_cast<uint64_t>(i));
  }
};

template <class Id>
struct KeyEdges {
  IdColumn<Id> keys;
  IdColumn<Id> neighbors;
  uint64_t* rows;
  int64_t* edges;
  uint64_t* first_bad;

  KHOP_HD void operator()(int64_t e) const {
    if (!keys.is_valid(e) || !neighbors.is_valid(e)) {
      atomic_min(first_bad, static_cast<uint64_t>(e));
      return;
    }
    rows[e] = static_cast<uint64_t>(keys[e]);
    edges[e] = e;
  }
};

// An item a row and one for the end, each a search: neither hubs nor long runs of empty rows hold
// a thread up.
template <class Ptr>
struct FindRows {
  const uint64_t* sorted_rows;
  int64_t num_edges;
  Ptr* indptr;

  KHOP_HD void operator()(int64_t row) const {
    indptr[row] =
        static_cast<Ptr>(first_not_below(sorted_rows, num_edges, static_cast<uint64_t>(row)));
  }
};

template <class Id, class Col>
struct PlaceNeighbors {
  IdColumn<Id> neighbors;
  const int64_t* edges;
  Col* indices;

  KHOP_HD void operator()(int64_t place) const {
    indices[place] = static_cast<Col>(neighbors[edges[place]]);
  }
};

template <class EdgeId>
struct PlaceEdgeIds {
  const int64_t* edges;
  EdgeId* edge_ids;

  KHOP_HD void operator()(int64_t place) const {
    edge_ids[place] = static_cast<EdgeId>(edges[place]);
  }
};

// Compressed rows of an edge list in device memory; edges of a row keep the order of the list.
// Takes 32 bytes an edge beside the list and the rows, and waits once, for the check of the ids; if
// that finds a error, nothing is written.
template <class Backend, class Id>
class EdgeListRows {
 public:
  // Values of the maps must be below the numbers of rows and of neighbours.
  EdgeListRows(Backend& backend, const IdColumn<Id>& keys, const IdColumn<Id>& neighbors,
               int64_t num_edges, int64_t num_rows, int64_t num_neighbors)
      : backend_(backend),
        keys_(keys),
        neighbors_(neighbors),
        num_edges_(num_edges),
        num_rows_(num_rows),
        num_neighbors_(num_neighbors),
        memory_(backend, num_edges) {}

  EdgeListError sort() {
    const FirstPlaces<Backend> first_bad(backend_, 3);
    check_map(keys_, num_rows_, first_bad.word(0));
    check_map(neighbors_, num_neighbors_, first_bad.word(1));
    const SortPairs pairs = memory_.pairs();
    backend_.run(Count{num_edges_},
                 KeyEdges<Id>{keys_, neighbors_, pairs.keys, pairs.values, first_bad.word(2)});
    int64_t bad[3];
    first_bad.read(bad);
    if (bad[0] >= 0) return {EdgeListError::kKeyMap, bad[0]};
    if (bad[1] >= 0) return {EdgeListError::kNeighborMap, bad[1]};
    if (bad[2] >= 0) return {EdgeListError::kEdge, bad[2]};
    backend_.sort(num_edges_, pairs, bits_for(num_rows_));
    return {EdgeListError::kNone, -1};
  }

  // Once sorted. `indptr` has num_rows + 1 entries, the others one an edge.
  template <class Ptr>
  void write_indptr(Ptr* indptr) const {
    backend_.run(Count{num_rows_ + 1}, FindRows<Ptr>{memory_.pairs().keys, num_edges_, indptr});
  }
  template <class Col>
  void write_indices(Col* indices) const {
    backend_.run(Count{num_edges_},
                 PlaceNeighbors<Id, Col>{neighbors_, memory_.pairs().values, indices});
  }
  template <class EdgeId>
  void write_edge_ids(EdgeId* edge_ids) const {
    backend_.run(Count{num_edges_}, PlaceEdgeIds<EdgeId>{memory_.pairs().values, edge_ids});
  }

 private:
  void check_map(const IdColumn<Id>& column, int64_t limit, uint64_t* first_bad) const {
    if (column.map == nullptr) return;
    backend_.run(Count{column.num_ids}, CheckMap{column.map, limit, first_bad});
  }

  Backend& backend_;
  IdColumn<Id> keys_;
  IdColumn<Id> neighbors_;
  int64_t num_edges_;
  int64_t num_rows_;
  int64_t num_neighbors_;
  SortMemory<Backend> memory_;
};

}  // namespace khop::device
