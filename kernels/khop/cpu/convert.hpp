// Edge list to compressed rows, in linear time.
#pragma once

#include <cstdint>

#include "khop/core/id_column.hpp"

namespace khop::cpu {

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

}  // namespace khop::cpu
