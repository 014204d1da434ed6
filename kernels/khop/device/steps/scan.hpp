// Sums of what lies before each item, in one launch for a few items and in two for many.
//
// Two passes over the items, and no thread that waits for one of another block: blocks sum up a
// stretch each, then each begins its own with the sum of those before it. They go over what there
// is, which the device knows, not over what there may be at most.
#pragma once

#include <algorithm>
#include <cstdint>

#include "khop/device/steps/backend.hpp"

namespace khop::device {

// A block's share of the items: consecutive ones.
struct Stretch {
  int64_t begin;
  int64_t end;

  static KHOP_HD Stretch of(const Block& block, int64_t count) {
    const int64_t each = (count + block.count - 1) / block.count;
    const int64_t begin = block.index * each < count ? block.index * each : count;
    return {begin, begin + each < count ? begin + each : count};
  }
};

struct BlockSums {
  int64_t sums[kBlockThreads];
  int64_t others[kBlockThreads];
  int64_t carry;
};

// Adds up what the threads of a block have: into sums[0].
KHOP_HD void reduce(const Block& block, int64_t* sums) {
  for (int width = kBlockThreads / 2; width > 0; width /= 2) {
    block.each([&](int t) {
      if (t < width) sums[t] += sums[t + width];
    });
  }
}

// out[i] = in(i); words[block] = the sum of the block's stretch.
template <class In>
struct SumStretches {
  using Shared = BlockSums;
  Count items;
  In in;
  int64_t* out;
  int64_t* words;

  KHOP_HD void operator()(const Block& block, Shared& shared) const {
    const Stretch own = Stretch::of(block, items.value());
    block.each([&](int t) {
      int64_t sum = 0;
      for (int64_t i = own.begin + t; i < own.end; i += kBlockThreads) {
        const int64_t value = in(i);
        out[i] = value;
        sum += value;
      }
      shared.sums[t] = sum;
    });
    reduce(block, shared.sums);
    block.each([&](int t) {
      if (t == 0) words[block.index] = shared.sums[0];
    });
  }
};

struct Written {
  const int64_t* values;
  KHOP_HD int64_t operator()(int64_t i) const { return values[i]; }
};

// out[i] = what lies before item i, of all stretches; out[count] = out[items.most] = all of it.
template <class In>
struct SumBefore {
  using Shared = BlockSums;
  Count items;
  In in;  // may read out[i]
  int64_t* out;
  const int64_t* words;  // sums of the stretches

  KHOP_HD void operator()(const Block& block, Shared& shared) const {
    const int64_t count = items.value();
    const Stretch own = Stretch::of(block, count);
    block.each([&](int t) {
      int64_t sum = 0;
      for (int64_t b = t; b < block.index; b += kBlockThreads) sum += words[b];
      shared.sums[t] = sum;
    });
    reduce(block, shared.sums);
    block.each([&](int t) {
      if (t == 0) shared.carry = shared.sums[0];
    });
    for (int64_t tile = own.begin; tile < own.end; tile += kTile)
      add_tile(block, shared, tile, own.end);
    block.each([&](int t) {
      if (t == 0 && block.index + 1 == block.count) {
        out[count] = shared.carry;
        out[items.most] = shared.carry;
      }
    });
  }

 private:
  static constexpr int kEach = 4;  // consecutive items of a thread: a sector of memory
  static constexpr int64_t kTile = int64_t{kEach} * kBlockThreads;

  KHOP_HD void add_tile(const Block& block, Shared& shared, int64_t tile, int64_t end) const {
    block.each([&](int t) {
      int64_t sum = 0;
      const int64_t first = tile + int64_t{t} * kEach;
      for (int64_t i = first; i < first + kEach && i < end; ++i) {
        const int64_t value = in(i);
        out[i] = value;
        sum += value;
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

// Up to so many items one block sums up faster than two launches do.
constexpr int64_t kOneBlock = 4096;

// out[i] = in(0) + ... + in(i - 1), for i up to and including the count; out[items.most], too, is
// the sum of all. `in(i)` may read out[i]. Room for items.most + 1.
template <class Backend, class In>
void sum(Backend& backend, Count items, In in, int64_t* out) {
  if (items.most <= kOneBlock) {
    backend.run_blocks(1, SumBefore<In>{items, in, out, nullptr});
    return;
  }
  constexpr int64_t kStretch = 1024;
  const int64_t blocks = std::min((items.most + kStretch - 1) / kStretch, kMostBlocks);
  int64_t* const words = backend.block_words();
  backend.run_blocks(blocks, SumStretches<In>{items, in, out, words});
  backend.run_blocks(blocks, SumBefore<Written>{items, {out}, out, words});
}

}  // namespace khop::device
