// The entries of smallest value in each row: races of neighbours, and draws by priority.
//
// Values are stored row by row. An entry is a position among all values. Of equal values the first
// entry is the smaller one. NaN is larger than all numbers, as in NumPy's sorts.
#pragma once

#include <cstdint>

namespace khop::cpu {

// Rows of values, and how many entries of each are wanted.
template <class T>
struct RowValues {
  const T* values;
  const int64_t* counts;  // of each row, not negative
  const int64_t* most;    // of each row: it gives min(count, most) entries, none if negative
  int64_t num_rows;
};

// Entries that `smallest_entries` writes.
template <class T>
int64_t num_smallest(const RowValues<T>& rows);

// Writes the entries, row by row: the smallest value first, or ascending.
template <class T>
void smallest_entries(const RowValues<T>& rows, bool ascending, int64_t* out);

}  // namespace khop::cpu
