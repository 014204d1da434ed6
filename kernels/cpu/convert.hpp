// Edge list to compressed rows, in linear time.
#pragma once

#include <cstdint>

namespace khop {

// An id column of an edge list, optionally seen through a map: id i stands for map[i].
template <class Id>
struct IdColumn {
  const Id* ids;
  const int64_t* map;  // null: the ids themselves
  int64_t num_ids;     // ids are in [0, num_ids)

  int64_t operator[](int64_t e) const {
    return map == nullptr ? static_cast<int64_t>(ids[e]) : map[static_cast<int64_t>(ids[e])];
  }
};

// Counts the edges of each row into indptr[row + 1] (zeroed by the caller, num_rows + 1 long) and
// sums them up. Returns -1, or the first edge whose key or neighbour is out of range.
template <class Id, class Ptr>
int64_t count_rows(const IdColumn<Id>& keys, const IdColumn<Id>& neighbors, int64_t num_edges,
                   Ptr* indptr, int64_t num_rows);

// Places every edge in its row; edges of a row keep the order of the list. `edge_ids` (may be null)
// receives the position in the list. `indptr` is used as cursor and restored.
template <class Id, class Ptr, class Col, class EdgeId>
void fill_rows(const IdColumn<Id>& keys, const IdColumn<Id>& neighbors, int64_t num_edges,
               Ptr* indptr, int64_t num_rows, Col* indices, EdgeId* edge_ids);

}  // namespace khop
