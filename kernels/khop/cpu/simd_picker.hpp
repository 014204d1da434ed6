// Draws from sixteen rows in vector registers. A file that is compiled for an instruction set gives
// `Isa`: registers of kWidth 64-bit lanes, of which values fill the lower halves.
//
// Multiplication reads lower halves alone, so the upper ones may hold anything: a round of Philox
// is two multiplications, two shifts and two exclusive ors.
//
// To be included by such files only, and nothing else by them that defines inline functions: the
// linker could otherwise take the copy that needs these instructions for all.
#pragma once

#include <cstdint>

#include "khop/cpu/simd.hpp"

namespace khop::cpu {
namespace {

template <class Isa>
class VectorPicker {
 public:
  static void pick(uint64_t key, const SimdRows& rows, int count, bool replace, uint32_t* picks) {
    V degree[kVectors];
    Nodes<kVectors> nodes;
    for (int v = 0; v < kVectors; ++v) {
      const int lane = v * Isa::kWidth;
      nodes.low[v] = Isa::load(rows.node_low + lane);
      nodes.high[v] = Isa::load(rows.node_high + lane);
      nodes.tree[v] = Isa::load(rows.tree + lane);
      degree[v] = Isa::load(rows.degree + lane);
    }
    V words[4][kVectors];
    for (int i = 0; i < count; ++i) {
      if (i % 4 == 0) draw_words(key, nodes, static_cast<uint32_t>(i / 4), words);
      // Lemire's multiply-shift, as bounded32.
      const V fewer = Isa::all(replace ? 0 : static_cast<uint32_t>(count - i - 1));
      uint32_t* out = picks + i * kLanes;
      for (int v = 0; v < kVectors; ++v) {
        const V bound = Isa::subtract(degree[v], fewer);
        Isa::store(out + v * Isa::kWidth, Isa::upper(Isa::multiply(words[i % 4][v], bound)));
      }
      if (!replace) {
        Isa::replace_repeated(picks, i, rows.degree, static_cast<uint32_t>(count - i));
      }
    }
  }

  static int64_t below(uint64_t key, uint32_t tree, const SimdNodes& given, uint64_t limit,
                       int64_t first, uint64_t* words, int64_t* places) {
    const SimdNodes nodes = given;
    int64_t found = 0;
    int64_t i = 0;
    // Two times as many lanes hide more of the latency.
    for (; i + kLanes < nodes.count; i += 2 * kLanes) {
      found +=
          append<2 * kVectors>(key, tree, nodes, i, limit, first, words + found, places + found);
    }
    if (i < nodes.count) {
      found += append<kVectors>(key, tree, nodes, i, limit, first, words + found, places + found);
    }
    return found;
  }

  // The largest that fewer than k are smaller than.
  static uint64_t kth(const uint64_t* words, int64_t count, int64_t k) {
    uint64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
      int64_t smaller = 0;
      for (int64_t j = 0; j < count; j += Isa::kWidth) {
        smaller += Isa::count_smaller(words + j, words[i]);
      }
      const uint64_t candidate = smaller < k ? words[i] : 0;
      found = candidate > found ? candidate : found;
    }
    return found;
  }

 private:
  static constexpr int kVectors = kLanes / Isa::kWidth;
  using V = typename Isa::V;

  template <int kCount>
  struct Nodes {
    V low[kCount];
    V high[kCount];
    V tree[kCount];
  };

  // `below` of nodes from the i-th on, which kCount vectors hold.
  template <int kCount>
  static int64_t append(uint64_t key, uint32_t tree, const SimdNodes& from, int64_t i,
                        uint64_t limit, int64_t first, uint64_t* words, int64_t* places) {
    Nodes<kCount> nodes;
    for (int v = 0; v < kCount; ++v) {
      const int64_t at = i + v * Isa::kWidth;
      nodes.low[v] = Isa::load(from.low + at);
      nodes.high[v] = from.high == nullptr ? Isa::all(0) : Isa::load(from.high + at);
      nodes.tree[v] = Isa::all(tree);
    }
    V drawn[4][kCount];
    draw_words(key, nodes, 0, drawn);
    int64_t found = 0;
    for (int v = 0; v < kCount; ++v) {
      const int64_t at = i + v * Isa::kWidth;
      const V both = Isa::joined(drawn[0][v], drawn[1][v]);
      found += Isa::append_below(both, limit, from.count - at, first + at, words + found,
                                 places + found);
    }
    return found;
  }

  // NodeDraws::block for all lanes.
  template <int kCount>
  static void draw_words(uint64_t key, const Nodes<kCount>& nodes, uint32_t block,
                         V (&words)[4][kCount]) {
    V c0[kCount], c1[kCount], c2[kCount], c3[kCount];
    for (int v = 0; v < kCount; ++v) {
      c0[v] = nodes.low[v];
      c1[v] = nodes.high[v];
      c2[v] = Isa::all(block);
      c3[v] = nodes.tree[v];
    }
    const V multiplier0 = Isa::all(0xD2511F53u), multiplier1 = Isa::all(0xCD9E8D57u);
    uint32_t k0 = static_cast<uint32_t>(key);
    uint32_t k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const V key0 = Isa::all(k0), key1 = Isa::all(k1);
      for (int v = 0; v < kCount; ++v) {
        const V product0 = Isa::multiply(multiplier0, c0[v]);
        const V product1 = Isa::multiply(multiplier1, c2[v]);
        c0[v] = Isa::exclusive_or(Isa::upper(product1), c1[v], key0);
        c2[v] = Isa::exclusive_or(Isa::upper(product0), c3[v], key1);
        c1[v] = product1;
        c3[v] = product0;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int v = 0; v < kCount; ++v) {
      words[0][v] = c0[v];
      words[1][v] = c1[v];
      words[2][v] = c2[v];
      words[3][v] = c3[v];
    }
  }
};

}  // namespace
}  // namespace khop::cpu
