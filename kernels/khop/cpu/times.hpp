// Rows in the order of time.
#pragma once

#include <cstdint>

namespace khop::cpu {

// First row whose times descend somewhere, or num_rows; -1 if row pointers are corrupt. Linear,
// without a store.
template <class Ptr>
int64_t first_row_out_of_order(const Ptr* indptr, int64_t num_rows, const int64_t* times,
                               int64_t num_edges);

// order[i] = the entry that comes to stand at place i when the entries of each row are put into
// ascending order of time, those of equal times keeping theirs. Row pointers must be sound.
template <class Ptr, class Place>
void order_by_time(const Ptr* indptr, int64_t num_rows, const int64_t* times, Place* order);

}  // namespace khop::cpu
