// Numbers drawn under one key, and the nodes that they stand for: a round of negatives.
#pragma once

#include <cstdint>

#include "khop/core/negatives.hpp"
#include "khop/core/search.hpp"
#include "khop/device/steps/backend.hpp"
#include "khop/device/steps/memory.hpp"

namespace khop::device {

// Upper bounds of numbers: one for all, or one for each.
struct Bounds {
  int64_t of_all;
  const int64_t* of_each;  // null: of_all

  KHOP_HD int64_t operator[](int64_t i) const { return of_each == nullptr ? of_all : of_each[i]; }
};

// The nodes that one end of a negative is drawn from, in an order in which those that may be drawn
// are a prefix. Each weighs as much as the sums grow by it.
struct NodeCandidates {
  int64_t num_nodes;
  const int64_t* sums;   // inclusive sums of the candidates' weights; null: each weighs 1
  const int64_t* order;  // ids in their order; null: 0, 1, ...

  // The candidate that a 64-bit word draws among the first `limit`; the first of all if they weigh
  // nothing.
  KHOP_HD int64_t draw(uint64_t word, int64_t limit) const {
    const int64_t mass = sums == nullptr ? limit : sums[limit - 1];
    int64_t place = static_cast<int64_t>(bounded64(word, static_cast<uint64_t>(mass)));
    if (sums != nullptr) place = mass > 0 ? first_above(sums, num_nodes, place) : 0;
    return order == nullptr ? place : order[place];
  }
};

// Keys the draws of one round (the first is 0) and one end: of sources (0) or of destinations (1).
KHOP_HD uint64_t negative_key(uint64_t run_key, uint64_t batch, int round, uint32_t side) {
  return step_key(run_key, batch, kNegativeHop, 2 * static_cast<uint32_t>(round) + side);
}

// Nodes to be drawn: the j-th, by word j of the key, is that of negative which[j] (null: j). How
// many there are may be known on the device alone.
struct NodeDraw {
  uint64_t key;
  NodeCandidates candidates;
  Bounds limits;         // of each negative: how many of the candidates may be drawn
  const int64_t* which;  // ascending or not, each at most once
  Count count;
};

// An item is two nodes: their words share a block.
struct DrawNodes {
  NodeDraw draw;
  int64_t* out;
  uint64_t* first_bad;

  KHOP_HD void operator()(int64_t block) const {
    const int64_t count = draw.count.value();
    if (2 * block >= count) return;
    const DrawnPair pair = draw_pair(draw.key, block);
    for (int64_t j = 2 * block; j < count && j < 2 * block + 2; ++j) {
      const int64_t negative = draw.which == nullptr ? j : draw.which[j];
      const int64_t limit = draw.limits[negative];
      if (limit < 1 || limit > draw.candidates.num_nodes) {
        atomic_min(first_bad, static_cast<uint64_t>(negative));
      } else {
        out[negative] = draw.candidates.draw(pair.word_of(j), limit);
      }
    }
  }
};

// out[which[j]] = the node that word j draws. Lowers `first_bad` to the first negative whose limit
// is not in [1, candidates]. Does not wait.
template <class Backend>
void draw_nodes(Backend& backend, const NodeDraw& draw, int64_t* out, uint64_t* first_bad) {
  backend.run(Count{(draw.count.most + 1) / 2}, DrawNodes{draw, out, first_bad});
}

}  // namespace khop::device
