// Copies rows of a table whose parts are separate arrays.
#pragma once

#include <cstdint>
#include <vector>

namespace khop::cpu {

// Parts of a table, one after the other: part p has the rows from firsts[p] to firsts[p + 1] - 1.
struct PartTables {
  std::vector<const char*> parts;
  std::vector<int64_t> firsts;  // one more than parts
  int64_t row_bytes;
};

// Copies row rows[i] to row i of `out`, in one pass over `rows`. Returns -1, or the first i whose
// row does not exist. The target is then partly written.
int64_t gather_parts(const PartTables& table, const int64_t* rows, int64_t count, char* out);

// The same from parts of int32 to int64.
int64_t gather_parts_widened(const PartTables& table, const int64_t* rows, int64_t count,
                             char* out);

}  // namespace khop::cpu
