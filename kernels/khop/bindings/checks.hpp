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

// The sum of counts of rows. Raises ValueError for a negative one, or more than 2^62 entries.
inline int64_t checked_total(const In<int64_t>& counts) {
  constexpr int64_t kMost = int64_t{1} << 62;
  int64_t total = 0;
  for (std::size_t row = 0; row < counts.shape(0); ++row) {
    const int64_t count = counts.data()[row];
    if (count < 0 || count > kMost - total) {
      throw nanobind::value_error("counts must not be negative, nor more than 2^62 in sum");
    }
    total += count;
  }
  return total;
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
