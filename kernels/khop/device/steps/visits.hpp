// The nodes that walks from a row visit most often (PinSAGE).
//
// Visits are sorted by row and node. A stable sort of the nodes of each row by their numbers of
// visits puts the most visited first, of equal ones the larger id.
#pragma once

#include <cstdint>

#include "khop/core/search.hpp"
#include "khop/device/steps/batch_view.hpp"
#include "khop/device/steps/runs.hpp"

namespace khop::device {

struct PlaceStarts {
  BatchView batch;
  int64_t num_walks;  // of each row
  int64_t* starts;

  KHOP_HD void operator()(int64_t walk) const {
    const FrontierView frontier = batch.frontier_of(batch.relations[0]);
    starts[walk] = frontier.keys[*frontier.begin + walk / num_walks];
  }
};

// Visits of a row's walks, which are `most` at most.
struct Visits {
  int64_t length;  // of a walk
  int64_t most;
  int64_t num_ids;

  KHOP_HD uint64_t key(int64_t row, int64_t node) const {
    return static_cast<uint64_t>(row * num_ids + (num_ids - 1 - node));
  }
  KHOP_HD int64_t row_of(int64_t key) const { return key / num_ids; }
  KHOP_HD int64_t node_of(int64_t key) const { return num_ids - 1 - key % num_ids; }
};

struct KeyVisits {
  Visits visits;
  const int64_t* nodes;  // of each walk its start, then those that it comes to; -1: it has ended
  uint64_t none;
  DeviceError* error;
  uint64_t* keys;
  int64_t* values;

  KHOP_HD void operator()(int64_t i) const {
    const int64_t walk = i / visits.length;
    const int64_t node = nodes[i + walk + 1];
    keys[i] = none;
    values[i] = i;
    if (node == -1) return;
    if (node < 0 || node >= visits.num_ids) {
      error->report(DeviceError::kNoSuchNeighbor, node);
    } else {
      keys[i] = visits.key(i / visits.most, node);
    }
  }
};

// An item for each visit: there may be as many runs.
struct KeyByVisits {
  Visits visits;
  Runs runs;
  uint64_t none;
  uint64_t* keys;
  int64_t* values;

  KHOP_HD void operator()(int64_t run) const {
    values[run] = run;
    keys[run] = none;
    if (run >= runs.num_runs()) return;
    const int64_t first = visits.row_of(runs.key_of(run)) * visits.most;
    keys[run] = static_cast<uint64_t>(first + visits.most - runs.length(run));
  }
};

struct ListVisited {
  Visits visits;
  Runs runs;
  const int64_t* order;  // of the runs
  int64_t* nodes;
  float* times;

  KHOP_HD void operator()(int64_t i) const {
    const int64_t run = order[i];
    nodes[i] = visits.node_of(runs.key_of(run));
    times[i] = static_cast<float>(runs.length(run));
  }
};

// The first `fanout` of a row's list, or all.
struct TakeMostVisited {
  Visits visits;
  const uint64_t* keys;
  int64_t count;
  int64_t fanout;
  int64_t* begins;
  int64_t* counts;

  KHOP_HD void operator()(int64_t row) const {
    const auto bound = [&](int64_t of) { return static_cast<uint64_t>(of * visits.most); };
    begins[row] = first_not_below(keys, count, bound(row));
    const int64_t found = first_not_below(keys, count, bound(row + 1)) - begins[row];
    counts[row] = found < fanout ? found : fanout;
  }
};

}  // namespace khop::device
