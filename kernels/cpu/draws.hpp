// Numbers drawn under one key, where no node's row is drawn: negatives of links.
#pragma once

#include <cstdint>

#include "khop/rng.hpp"

namespace khop {

// 64-bit words of one key: the word-pairs of its first 2^32 blocks.
constexpr int64_t kMaxDraws = int64_t{1} << 33;

// out[i] is word i of the key's sequence (node 0, tree 0), mapped to [0, bound(i)); 0 if the bound
// is 0. At most kMaxDraws of them.
template <class Bound>
void draw_below(uint64_t key, int64_t count, Bound&& bound, int64_t* out) {
  const NodeDraws draws{key, 0, 0};
  Philox4x32 block{};
  for (int64_t i = 0; i < count; ++i) {
    const bool is_first = i % 2 == 0;
    if (is_first) block = draws.block(static_cast<uint32_t>(i / 2));
    const uint32_t low = block.word[is_first ? 0 : 2], high = block.word[is_first ? 1 : 3];
    const uint64_t word = static_cast<uint64_t>(high) << 32 | low;
    out[i] = static_cast<int64_t>(bounded64(word, static_cast<uint64_t>(bound(i))));
  }
}

}  // namespace khop
