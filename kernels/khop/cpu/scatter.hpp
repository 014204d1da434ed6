// Writes rows into a table: replaced, added, or the smaller or larger of both values.
#pragma once

#include <cstdint>

#include "khop/core/encoding.hpp"

namespace khop::cpu {

enum class Reduce { kSet, kAdd, kMin, kMax };

// Floats of 16 bits, calculated with as float.
struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float widened(float value) { return value; }
inline float widened(Bfloat16 value) { return from_bfloat16(value.bits); }
inline float widened(Float16 value) { return from_float16(value.bits); }

inline void narrow(float value, float& to) { to = value; }
inline void narrow(float value, Bfloat16& to) { to.bits = to_bfloat16(value); }
inline void narrow(float value, Float16& to) { to.bits = to_float16(value); }

// For each i in order: table[rows[i]] = reduce(table[rows[i]], values[i]), value by value. A row
// may occur several times. Integers wrap around. Sums of 16 bits are rounded to nearest, ties to
// even. min and max return NaN if either value is NaN. All rows must exist: see first_outside.
template <class Value>
void scatter_rows(Value* table, int64_t width, const int64_t* rows, int64_t count,
                  const Value* values, Reduce reduce);

// The first i whose rows[i] is not in [0, num_rows), or -1.
int64_t first_outside(const int64_t* rows, int64_t count, int64_t num_rows);

}  // namespace khop::cpu
