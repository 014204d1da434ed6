// Sums of what lies before each item, in one launch.
//
// Blocks take a stretch of the items each, one behind the other. A block adds up its own, tells the
// others, and waits for the sums of those before it, which began before it did. They go over what
// there is, which the device knows, not over what there may be at most.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "khop/device/steps/backend.hpp"

namespace khop::device {

// A block's share of the items: consecutive ones.
struct Stretch {
  int64_t begin;
  int64_t end;

  static KHOP_HD Stretch of(int64_t block, int64_t num_blocks, int64_t count) {
    const int64_t each = (count + num_blocks - 1) / num_blocks;
    const int64_t begin = block * each < count ? block * each : count;
    return {begin, begin + each < count ? begin + each : count};
  }
};

// Adds up what the threads of a block have: into sums[0].
KHOP_HD void reduce(const Block& block, int64_t* sums) {
  for (int width = kBlockThreads / 2; width > 0; width /= 2) {
    block.each([&](int t) {
      if (t < width) sums[t] += sums[t + width];
    });
  }
}

// out[i] = what lies before item i; out[count] = out[items.most] = all of it.
template <class In>
struct SumBefore {
  struct Shared {
    int64_t sums[kBlockThreads];
    int64_t others[kBlockThreads];
    int64_t carry;
    BlockWords::Turn turn;
  };
  Count items;
  In in;        // in(i), or in(i, thread); may read out[i]
  int threads;  // of a block that call `in`
  int64_t* out;
  BlockWords* words;

  KHOP_HD void operator()(const Block& block, Shared& shared) const {
    block.each([&](int t) {
      if (t == 0) shared.turn = block.count > 1 ? words->begin() : BlockWords::Turn{0, 0};
    });
    const int64_t count = items.value();
    const int64_t index = shared.turn.index;
    const Stretch own = Stretch::of(index, block.count, count);
    block.each([&](int t) {
      int64_t sum = 0;
      for (int64_t i = own.begin + t; t < threads && i < own.end; i += threads) {
        const int64_t value = value_of(i, index * threads + t);
        out[i] = value;
        sum += value;
      }
      shared.sums[t] = sum;
    });
    if (block.count > 1) {
      add_earlier(block, shared);
    } else {
      block.each([&](int t) {
        if (t == 0) shared.carry = 0;
      });
    }
    for (int64_t tile = own.begin; tile < own.end; tile += kTile)
      add_tile(block, shared, tile, own.end);
    block.each([&](int t) {
      if (t > 0 || index + 1 != block.count) return;
      out[count] = shared.carry;
      out[items.most] = shared.carry;
      if (block.count > 1) words->begin_next_round(shared.turn);
    });
  }

 private:
  static constexpr int kEach = 4;  // consecutive items of a thread: a sector of memory
  static constexpr int64_t kTile = int64_t{kEach} * kBlockThreads;

  KHOP_HD int64_t value_of(int64_t i, [[maybe_unused]] int64_t thread) const {
    if constexpr (std::is_invocable_v<const In&, int64_t, int64_t>) {
      return in(i, thread);
    } else {
      return in(i);
    }
  }

  // Tells the others the sum of this block, and leaves what lies before it in `carry`.
  KHOP_HD void add_earlier(const Block& block, Shared& shared) const {
    reduce(block, shared.sums);
    block.each([&](int t) {
      if (t == 0) words->publish(shared.turn, shared.sums[0]);
    });
    block.each([&](int t) {
      int64_t sum = 0;
      for (int64_t b = t; b < shared.turn.index; b += kBlockThreads) {
        sum += words->sum_of(b, shared.turn.round);
      }
      shared.sums[t] = sum;
    });
    reduce(block, shared.sums);
    block.each([&](int t) {
      if (t == 0) shared.carry = shared.sums[0];
    });
  }

  KHOP_HD void add_tile(const Block& block, Shared& shared, int64_t tile, int64_t end) const {
    block.each([&](int t) {
      int64_t sum = 0;
      const int64_t first = tile + int64_t{t} * kEach;
      for (int64_t i = first; i < first + kEach && i < end; ++i) {
        sum += out[i];
      }
      shared.sums[t] = sum;
    });
    int64_t* from = shared.sums;
    int64_t* to = shared.others;
    for (int width = 1; width < kBlockThreads; width *= 2) {
      block.each([&](int t) { to[t] = from[t] + (t < width ? 0 : from[t - width]); });
      int64_t* const other = from;
      from = to;
      to = other;
    }
    block.each([&](int t) {
      int64_t before = shared.carry + (t == 0 ? 0 : from[t - 1]);
      const int64_t first = tile + int64_t{t} * kEach;
      for (int64_t i = first; i < first + kEach && i < end; ++i) {
        const int64_t value = out[i];
        out[i] = before;
        before += value;
      }
    });
    block.each([&](int t) {
      if (t == 0) shared.carry += from[kBlockThreads - 1];
    });
  }
};

// out[i] = in(0) + ... + in(i - 1), for i up to and including the count; out[items.most], too, is
// the sum of all. `in(i)` may read out[i]. Room for items.most + 1. With in(i, thread), on as many
// threads at most.
template <class Backend, class In>
void sum(Backend& backend, Count items, In in, int64_t* out,
         int64_t most_threads = std::numeric_limits<int64_t>::max()) {
  // Where threads have work of their own to do, an item each if there are so many.
  constexpr bool is_work = std::is_invocable_v<const In&, int64_t, int64_t>;
  constexpr int64_t kStretch = is_work ? kBlockThreads : 4 * kBlockThreads;
  const int64_t threads = std::min<int64_t>(kBlockThreads, most_threads);
  const int64_t wanted = std::max<int64_t>(1, (items.most + kStretch - 1) / kStretch);
  const int64_t blocks = std::min({wanted, kMostBlocks, most_threads / threads});
  backend.run_blocks(
      blocks, SumBefore<In>{items, in, static_cast<int>(threads), out, backend.block_words()});
}

}  // namespace khop::device
