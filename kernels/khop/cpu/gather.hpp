// Copies rows of a table, of any width, to where they are needed.
#pragma once

#include <cstdint>

namespace khop::cpu {

struct RowTable {
  const char* data;
  int64_t num_rows;
  int64_t row_bytes;
};

// Where rows go: the i-th to row places[i], or, without places, to row i.
struct RowTarget {
  char* data;
  int64_t num_rows;
  const int64_t* places;
};

// Copies table[rows[i]] for each of `count` rows, or table[i] if `rows` is null. Returns -1, or the
// first i whose row or place does not exist; then the target is partly written. Uses up to
// num_threads threads where the copy is long enough to pay for them.
template <class Index>
int64_t gather_rows(const RowTable& table, const Index* rows, int64_t count,
                    const RowTarget& target, int num_threads);

// The same from a table of int32 to a target of int64.
template <class Index>
int64_t gather_widened(const RowTable& table, const Index* rows, int64_t count,
                       const RowTarget& target, int num_threads);

}  // namespace khop::cpu
