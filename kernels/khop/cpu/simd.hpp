// Uniform draws from sixteen rows at a time, a row a lane.
//
// The same positions as pick.hpp draws row by row, word for word. Ten rounds of Philox are a chain
// of dependent multiplications: lanes hide its latency and fill vector units. Per row and on one
// core with AVX-512: 4.7, 9.1 and 15 ns for 5, 10 and 15 picks (AVX2: 9, 16, 25; one row at a time:
// 37, 80, 138).
#pragma once

#include <cstdint>
#include <vector>

namespace khop::cpu {

constexpr int kLanes = 16;

// What the draws of each row depend on. Unused lanes hold anything, with a degree that is allowed.
struct SimdRows {
  uint32_t node_low[kLanes];
  uint32_t node_high[kLanes];
  uint32_t tree[kLanes];
  uint32_t degree[kLanes];  // more than `count` without replacement; at most kWideDegree
};

// Draws `count` positions (at most kScanLimit) in [0, degree) from each row; picks[i * kLanes + l]
// is the i-th of lane l.
using PickFunction = void (*)(uint64_t key, const SimdRows& rows, int count, bool replace,
                              uint32_t* picks);

// The first 64-bit word of each of `count` nodes (NodeDraws::block(0)), a multiple of kLanes. Upper
// halves of ids may be null: then all are zero.
using WordFunction = void (*)(uint64_t key, uint32_t tree, const uint32_t* node_low,
                              const uint32_t* node_high, int64_t count, uint64_t* words);

struct SimdPicker {
  const char* instructions;  // "avx512", "avx2" or "portable"
  PickFunction pick;
  WordFunction words;
};

// Those that this machine can run, the fastest first.
const std::vector<SimdPicker>& simd_pickers();

}  // namespace khop::cpu
