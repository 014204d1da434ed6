// Edges with their reverses, sorted by destination and source, of equal pairs the first.
#pragma once

#include <cstdint>

#include "khop/device/steps/backend.hpp"
#include "khop/device/steps/induce.hpp"

namespace khop::device {

// Sort keys of a list's edges, and of another's turned round behind them.
struct PairKeys {
  EdgeArrays own;
  EdgeArrays reversed;
  int64_t num_own;
  uint64_t* keys;
  int64_t* places;

  KHOP_HD void operator()(int64_t j) const {
    const bool is_own = j < num_own;
    const int64_t k = is_own ? j : j - num_own;
    const int32_t destination = is_own ? own.destinations[k] : reversed.sources[k];
    const int32_t source = is_own ? own.sources[k] : reversed.destinations[k];
    keys[j] = static_cast<uint64_t>(destination) << 32 | static_cast<uint32_t>(source);
    places[j] = j;
  }
};

struct WritePairs {
  const uint64_t* keys;
  const int64_t* places;
  const int64_t* ranks;
  EdgeArrays own;
  EdgeArrays reversed;
  int64_t num_own;
  EdgeArrays out;

  KHOP_HD void operator()(int64_t j) const {
    const int64_t place = ranks[j];
    if (ranks[j + 1] == place) return;
    out.sources[place] = static_cast<int32_t>(keys[j] & 0xFFFFFFFFu);
    out.destinations[place] = static_cast<int32_t>(keys[j] >> 32);
    if (out.edges == nullptr) return;
    const int64_t from = places[j];
    out.edges[place] = from < num_own ? own.edges[from] : reversed.edges[from - num_own];
  }
};

}  // namespace khop::device
