// Places in ascending numbers.
#pragma once

#include <cstdint>

#include "khop/core/rng.hpp"

namespace khop {

// The first place in ascending values[0 .. count) whose value is not below `wanted`, or count.
template <class T>
KHOP_HD int64_t first_not_below(const T* values, int64_t count, T wanted) {
  int64_t begin = 0;
  int64_t end = count;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (values[middle] < wanted) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// The first place in ascending values[0 .. count) whose value is above `wanted`, or count.
template <class T>
KHOP_HD int64_t first_above(const T* values, int64_t count, int64_t wanted) {
  int64_t begin = 0;
  int64_t end = count;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (static_cast<int64_t>(values[middle]) <= wanted) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

}  // namespace khop
