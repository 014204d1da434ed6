// What steps look up in ascending numbers, and sort numbers with.
#pragma once

#include <cstdint>

#include "../../../device/memory.hpp"
#include "khop/parallel/backend.hpp"

namespace khop::parallel {

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

// How many bits tell `count` numbers, 0 to count - 1, apart; at least one.
inline int bits_for(int64_t count) {
  int bits = 1;
  while (bits < 63 && (int64_t{1} << bits) < count) ++bits;
  return bits;
}

// Memory that a sort needs: 32 bytes a pair.
template <class Backend>
class SortMemory {
 public:
  SortMemory(Backend& backend, int64_t count)
      : keys_(backend, count),
        other_keys_(backend, count),
        values_(backend, count),
        other_values_(backend, count) {}

  SortPairs pairs() const {
    return {keys_.data(), values_.data(), other_keys_.data(), other_values_.data()};
  }

 private:
  DeviceArray<Backend, uint64_t> keys_;
  DeviceArray<Backend, uint64_t> other_keys_;
  DeviceArray<Backend, int64_t> values_;
  DeviceArray<Backend, int64_t> other_values_;
};

// Positions that steps lower by `atomic_min`: the first of what was found wrong, of each of a few
// kinds.
template <class Backend>
class FirstPlaces {
 public:
  FirstPlaces(Backend& backend, int64_t kinds) : kinds_(kinds), words_(backend, kinds) {
    backend.fill(words_.data(), 0xFF, static_cast<std::size_t>(kinds) * sizeof(uint64_t));
  }

  uint64_t* word(int64_t kind) const { return words_.data() + kind; }
  // To places[0 .. kinds): -1 where nothing was found. Waits.
  void read(int64_t* places) const { words_.download(reinterpret_cast<uint64_t*>(places), kinds_); }

 private:
  int64_t kinds_;
  DeviceArray<Backend, uint64_t> words_;
};

}  // namespace khop::parallel
