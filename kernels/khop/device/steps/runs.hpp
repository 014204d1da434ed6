// Runs of equal keys among sorted ones.
#pragma once

#include <cstdint>

#include "khop/device/steps/backend.hpp"

namespace khop::device {

// Keys from `none` on are of no run, and come last.
struct Runs {
  const uint64_t* keys;
  int64_t count;
  uint64_t none;
  int64_t* ranks;   // [count + 1] runs that begin before each key
  int64_t* begins;  // [count + 1] first key of each run, and the end of the last one

  KHOP_HD bool has(int64_t i) const { return i < count && keys[i] < none; }
  KHOP_HD bool begins_at(int64_t i) const { return has(i) && (i == 0 || keys[i] != keys[i - 1]); }
  KHOP_HD int64_t num_runs() const { return ranks[count]; }
  KHOP_HD Count each() const { return {count, ranks + count}; }
  KHOP_HD int64_t run_of(int64_t i) const { return ranks[i + 1] - 1; }
  KHOP_HD int64_t key_of(int64_t run) const { return static_cast<int64_t>(keys[begins[run]]); }
  KHOP_HD int64_t length(int64_t run) const { return begins[run + 1] - begins[run]; }
};

struct MarkRuns {
  Runs runs;
  KHOP_HD void operator()(int64_t i) const { runs.ranks[i] = runs.begins_at(i) ? 1 : 0; }
};

// An item a key and one for the end.
struct FindRuns {
  Runs runs;
  KHOP_HD void operator()(int64_t i) const {
    const bool ends = !runs.has(i) && (i == 0 || runs.has(i - 1));
    if (runs.begins_at(i) || ends) runs.begins[runs.ranks[i]] = i;
  }
};

}  // namespace khop::device
