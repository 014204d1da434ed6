// Counter-based random numbers: every draw is a pure function of a key and a counter.
//
// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) passes
// BigCrush and needs no state, so a draw comes out the same on any thread, process, machine or GPU.
// Three levels, each one Philox call:
//
//   run key  = f(seed; epoch, stream)            one per epoch of one trainer
//   step key = f(run key; batch, hop, edge type) one per hop of a batch
//   draws    = f(step key; node, block, tree)    four 32-bit words per block
//
// `node` is the ORIGINAL id of the node whose neighbours are drawn, so draws do not depend on how
// the graph was partitioned; `tree` tells the subgraphs of a disjoint batch apart (else 0).
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KHOP_HD __host__ __device__ __forceinline__
#else
#define KHOP_HD inline
#endif

namespace khop {

struct Philox4x32 {
  uint32_t word[4];
};

KHOP_HD void mul_wide(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
  const uint64_t product = static_cast<uint64_t>(a) * b;
  high = static_cast<uint32_t>(product >> 32);
  low = static_cast<uint32_t>(product);
}

KHOP_HD Philox4x32 philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint32_t high0, low0, high1, low1;
    mul_wide(0xD2511F53u, c0, high0, low0);
    mul_wide(0xCD9E8D57u, c2, high1, low1);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

KHOP_HD uint64_t first_64_bits(const Philox4x32& block) {
  return static_cast<uint64_t>(block.word[1]) << 32 | block.word[0];
}

// Keys an epoch of one trainer. `stream` separates trainers that share a seed.
KHOP_HD uint64_t run_key(uint64_t seed, uint64_t epoch, uint64_t stream) {
  return first_64_bits(philox(seed, static_cast<uint32_t>(epoch),
                              static_cast<uint32_t>(epoch >> 32), static_cast<uint32_t>(stream),
                              static_cast<uint32_t>(stream >> 32)));
}

// Hop numbers that no sampler reaches name the other users of a run key.
constexpr uint32_t kShuffleHop = 0xFFFFFFFFu;
constexpr uint32_t kNegativeHop = 0xFFFFFFFEu;
// 0xFFFFFFFD is LABOR's (labor.hpp).
constexpr uint32_t kProgramHop = 0xFFFFFFFCu;  // sampling methods in Python (program_key)

// Keys the draws of one hop over one edge type in one batch.
KHOP_HD uint64_t step_key(uint64_t run, uint64_t batch, uint32_t hop, uint32_t edge_type) {
  return first_64_bits(philox(run, static_cast<uint32_t>(batch), static_cast<uint32_t>(batch >> 32),
                              hop, edge_type));
}

// Keys what a sampling method in Python draws in a batch: for which purpose, in which step (hop or
// round), over which edge or node type.
KHOP_HD uint64_t program_key(uint64_t run, uint64_t batch, uint32_t purpose, uint32_t step,
                             uint32_t type) {
  return step_key(step_key(run, batch, kProgramHop, purpose), 0, step, type);
}

// The draws of one node in one step: word j of the sequence, or 64-bit word j of the same sequence.
struct NodeDraws {
  uint64_t key;
  uint64_t node;
  uint32_t tree;

  KHOP_HD Philox4x32 block(uint32_t index) const {
    return philox(key, static_cast<uint32_t>(node), static_cast<uint32_t>(node >> 32), index, tree);
  }
};

// Lemire's multiply-shift maps a word to [0, bound). The bias is below bound / 2^bits, so rows of
// more than kWideDegree neighbours use 64-bit words and the others 32-bit ones.
constexpr uint64_t kWideDegree = uint64_t{1} << 16;

KHOP_HD uint64_t bounded32(uint32_t word, uint32_t bound) {
  return (static_cast<uint64_t>(word) * bound) >> 32;
}

// The upper 64 bits of a product.
KHOP_HD uint64_t high_product(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
}

KHOP_HD uint64_t bounded64(uint64_t word, uint64_t bound) { return high_product(word, bound); }

}  // namespace khop
