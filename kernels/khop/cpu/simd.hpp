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

// Ids of nodes. Upper halves may be null: then all are zero. Up to the next multiple of kLanes,
// anything may follow, which is read.
struct SimdNodes {
  const uint32_t* low;
  const uint32_t* high;
  int64_t count;
};

// Writes the first 64-bit word of each node (NodeDraws::block(0)) that is at most `limit`, and
// first + i, i being the node's number, in order; returns how many. There is room for kLanes more
// than there are nodes.
using BelowFunction = int64_t (*)(uint64_t key, uint32_t tree, const SimdNodes& nodes,
                                  uint64_t limit, int64_t first, uint64_t* words, int64_t* places);

// The k-th smallest of `count` words, k = 1 the least; kLanes words of all ones follow them. Takes
// time in proportion to count^2.
using KthFunction = uint64_t (*)(const uint64_t* words, int64_t count, int64_t k);

// Maps values one by one, in place or not: see khop/sampler/methods/normal.py.
using MapFunction = void (*)(const double* values, int64_t count, double* out);
using VariateFunction = void (*)(const uint64_t* words, int64_t count, double* out);

struct NormalFunctions {
  MapFunction logs;  // of positive values that are not subnormal
  VariateFunction variates;
  MapFunction cdf;
};

struct SimdPicker {
  const char* instructions;  // "avx512", "avx2" or "portable"
  PickFunction pick;
  BelowFunction below;
  KthFunction kth;
  NormalFunctions normal;
};

// Those that this machine can run, the fastest first.
const std::vector<SimdPicker>& simd_pickers();

// Writes the first 64-bit word of each node, of tree 0.
void draw_words(uint64_t key, const int64_t* nodes, int64_t count, uint64_t* words);

}  // namespace khop::cpu
