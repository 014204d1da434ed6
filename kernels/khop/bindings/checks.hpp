// Checks of arguments that several bindings share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <limits>
#include <string>

#include "khop/bindings/arrays.hpp"
#include "khop/core/negatives.hpp"

namespace khop::bindings {

// An index below `count`. Raises IndexError otherwise; `name`: of what it is an index.
inline int32_t checked(int64_t index, std::size_t count, const char* name) {
  if (index < 0 || index >= static_cast<int64_t>(count)) {
    throw nanobind::index_error((std::string("no such ") + name).c_str());
  }
  return static_cast<int32_t>(index);
}

// Raises ValueError unless an array holds as many entries as are wanted.
inline void check_length(int64_t got, int64_t want, const char* name) {
  if (got == want) return;
  throw nanobind::value_error((std::string(name) + " must hold " + std::to_string(want) +
                               " entries, but holds " + std::to_string(got))
                                  .c_str());
}

// Raises ValueError unless counts are of rows that hold all of `total` entries.
inline void check_rows(const In<int64_t>& counts, int64_t total, const char* name) {
  int64_t left = total;
  for (std::size_t row = 0; row < counts.shape(0); ++row) {
    const int64_t count = counts.data()[row];
    if (count < 0 || count > left) left = -1;
    if (left < 0) break;
    left -= count;
  }
  if (left == 0) return;
  throw nanobind::value_error(("counts must not be negative, and add up to the number of " +
                               std::string(name) + ", " + std::to_string(total))
                                  .c_str());
}

// Raises ValueError unless `count` numbers from `first` on, neither negative, fit 64 bits.
inline void check_first(int64_t first, int64_t count, const char* name) {
  if (first >= 0 && first <= std::numeric_limits<int64_t>::max() - count) return;
  throw nanobind::value_error(
      (std::string(name) + " must not be negative, nor lead beyond 2^63 - 1").c_str());
}

// Raises ValueError for more numbers than one key has words.
inline void check_draws(int64_t count) {
  if (count > kMaxDraws) {
    throw nanobind::value_error("at most 2^33 numbers are drawn under one key");
  }
}

}  // namespace khop::bindings
