// Writes rows into a table: replaced, added, or the smaller or larger of both values.
#pragma once

#include <cstdint>
#include <cstring>

namespace khop::cpu {

enum class Reduce { kSet, kAdd, kMin, kMax };

// A dtype that NumPy lacks: the upper half of a float.
struct Bfloat16 {
  uint16_t bits;
};

inline float widened(float value) { return value; }
inline float widened(Bfloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Rounds to nearest, ties to even. NaN stays NaN.
inline void narrow(float value, float& to) { to = value; }
inline void narrow(float value, Bfloat16& to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = value != value ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1);
  to.bits = static_cast<uint16_t>(rounded >> 16);
}

// For each i in order: table[rows[i]] = reduce(table[rows[i]], values[i]), value by value. A row
// may occur several times. Integers wrap around. Sums of bfloat16 are rounded to nearest, ties to
// even. min and max return NaN if either value is NaN. All rows must exist: see first_outside.
template <class Value>
void scatter_rows(Value* table, int64_t width, const int64_t* rows, int64_t count,
                  const Value* values, Reduce reduce);

// The first i whose rows[i] is not in [0, num_rows), or -1.
int64_t first_outside(const int64_t* rows, int64_t count, int64_t num_rows);

}  // namespace khop::cpu
