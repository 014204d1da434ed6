// Bounded numbers drawn under one key, for negatives of links: no node's row is drawn.
#pragma once

#include <cstdint>

#include "khop/core/rng.hpp"

namespace khop {

// 64-bit words of one key: the word-pairs of its first 2^32 blocks.
constexpr int64_t kMaxDraws = int64_t{1} << 33;

// Words 2 * block and 2 * block + 1 of the key's sequence (node 0, tree 0).
struct DrawnPair {
  uint64_t word[2];

  // That of draw i. Chosen, not indexed: an index would put both words into memory on a device.
  KHOP_HD uint64_t word_of(int64_t i) const { return (i & 1) != 0 ? word[1] : word[0]; }
};

KHOP_HD DrawnPair draw_pair(uint64_t key, int64_t block) {
  const Philox4x32 drawn = NodeDraws{key, 0, 0}.block(static_cast<uint32_t>(block));
  return {{static_cast<uint64_t>(drawn.word[1]) << 32 | drawn.word[0],
           static_cast<uint64_t>(drawn.word[3]) << 32 | drawn.word[2]}};
}

// out[i] is word i of the key's sequence, mapped to [0, bound(i)); 0 if the bound is 0. At most
// kMaxDraws of them.
template <class Bound>
void draw_below(uint64_t key, int64_t count, Bound&& bound, int64_t* out) {
  for (int64_t first = 0; first < count; first += 2) {
    const DrawnPair pair = draw_pair(key, first / 2);
    for (int64_t i = first; i < count && i < first + 2; ++i) {
      out[i] =
          static_cast<int64_t>(bounded64(pair.word[i - first], static_cast<uint64_t>(bound(i))));
    }
  }
}

}  // namespace khop
