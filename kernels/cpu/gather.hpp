// Copies rows of a table, of any width, to where they are needed.
#pragma once

#include <cstdint>

namespace khop {

struct RowTable {
  const char* data;
  int64_t num_rows;
  int64_t row_bytes;
};

// out[i] = table[rows[i]], or out[places[i]] = table[rows[i]] if places is given. `out` holds
// num_out rows. Returns -1, or the first i whose row or place does not exist; then out is partly
// written. Uses up to num_threads threads where the copy is long enough to pay for them.
template <class Index>
int64_t gather_rows(const RowTable& table, const Index* rows, int64_t count, const int64_t* places,
                    char* out, int64_t num_out, int num_threads);

// out[i] = names[ids[i]]. Returns -1, or the first i whose id has no name; then out is partly
// written.
template <class Name>
int64_t rename_ids(const Name* names, int64_t num_names, const int64_t* ids, int64_t count,
                   int64_t* out);

}  // namespace khop
