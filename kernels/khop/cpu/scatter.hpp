// Writes rows into a table: replaced, added, or the smaller or larger of both values.
#pragma once

#include <cstdint>

namespace khop::cpu {

enum class Reduce { kSet, kAdd, kMin, kMax };

// Dtypes that NumPy lacks are told apart by name.
struct Bfloat16 {
  uint16_t bits;
};

// For each i in order: table[rows[i]] = reduce(table[rows[i]], values[i]), value by value. A row
// may occur several times. Integers wrap around. Sums of bfloat16 are rounded to nearest, ties to
// even. min and max return NaN if either value is NaN. All rows must exist: see first_outside.
template <class Value>
void scatter_rows(Value* table, int64_t width, const int64_t* rows, int64_t count,
                  const Value* values, Reduce reduce);

// The first i whose rows[i] is not in [0, num_rows), or -1.
int64_t first_outside(const int64_t* rows, int64_t count, int64_t num_rows);

}  // namespace khop::cpu
