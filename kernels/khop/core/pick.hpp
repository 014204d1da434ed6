// Uniform draws from a row: positions in [0, degree), in one defined order.
//
// Without replacement this is Floyd's algorithm (Bentley & Floyd, CACM 30(9), 1987): k draws
// whatever the degree. Draw i picks t in [0, degree - k + i]; if t was picked before, the row's
// position degree - k + i is taken instead. Every k-subset is equally likely.
#pragma once

#include <cstdint>

#include "khop/core/rng.hpp"

// Before a loop all of whose bounds the compiler knows: written out whole for a GPU.
#ifdef __CUDA_ARCH__
#define KHOP_UNROLL _Pragma("unroll")
#else
#define KHOP_UNROLL
#endif

namespace khop {

// Number of neighbours a row contributes. fanout < 0 takes all of them.
KHOP_HD int64_t pick_count(int64_t degree, int64_t fanout, bool replace) {
  if (degree == 0 || fanout == 0) return 0;
  if (fanout < 0 || (!replace && fanout >= degree)) return degree;
  return fanout;
}

// True if the row is taken whole, in row order, without a draw.
KHOP_HD bool takes_all(int64_t degree, int64_t fanout, bool replace) {
  return fanout < 0 || (!replace && fanout >= degree);
}

// A word of a block by its number. GPUs have no array in registers whose index is not known to the
// compiler: it would lie in local memory.
KHOP_HD uint32_t word_of(const Philox4x32& block, uint32_t i) {
#ifdef __CUDA_ARCH__
  const uint32_t even = i & 2 ? block.word[2] : block.word[0];
  const uint32_t odd = i & 2 ? block.word[3] : block.word[1];
  return i & 1 ? odd : even;
#else
  return block.word[i];
#endif
}

// Draws word after word of a node's sequence, a block of four at a time.
class DrawStream {
 public:
  KHOP_HD DrawStream(const NodeDraws& draws, bool wide) : draws_(draws), wide_(wide) {}

  KHOP_HD uint64_t below(uint64_t bound) {
    if (wide_) return bounded64(next64(), bound);
    return bounded32(next(), static_cast<uint32_t>(bound));
  }

  KHOP_HD uint64_t next64() {
    const uint32_t low = next();
    const uint32_t high = next();
    return static_cast<uint64_t>(high) << 32 | low;
  }

 private:
  KHOP_HD uint32_t next() {
    if (used_ == 4) {
      block_ = draws_.block(index_++);
      used_ = 0;
    }
    return word_of(block_, used_++);
  }

  NodeDraws draws_;
  bool wide_;
  uint32_t index_ = 0;
  uint32_t used_ = 4;
  Philox4x32 block_{};
};

template <class Position>
KHOP_HD void pick_with_replacement(const NodeDraws& draws, int64_t degree, int64_t count,
                                   Position* out) {
  DrawStream stream(draws, static_cast<uint64_t>(degree) > kWideDegree);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<Position>(stream.below(static_cast<uint64_t>(degree)));
  }
}

// `seen(i, t)` returns whether t is among out[0..i); `note(t)` records what was picked.
template <class Position, class Seen, class Note>
KHOP_HD void pick_without_replacement(const NodeDraws& draws, int64_t degree, int64_t count,
                                      Position* out, Seen&& seen, Note&& note) {
  DrawStream stream(draws, static_cast<uint64_t>(degree) > kWideDegree);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t last = static_cast<uint64_t>(degree - count + i);
    Position t = static_cast<Position>(stream.below(last + 1));
    if (seen(i, t)) t = static_cast<Position>(last);
    out[i] = t;
    note(t);
  }
}

// Up to this many picks a scan of those already made beats any set.
constexpr int64_t kScanLimit = 48;

// Up to this many, a GPU's thread keeps them in registers while it scans.
constexpr int kRegisterPicks = 16;

template <class Position>
KHOP_HD void pick_without_replacement_scan(const NodeDraws& draws, int64_t degree, int64_t count,
                                           Position* out) {
  pick_without_replacement(
      draws, degree, count, out,
      [out](int64_t i, Position t) {
        bool found = false;
        for (int64_t j = 0; j < i; ++j) found |= out[j] == t;
        return found;
      },
      [](Position) {});
}

// A set of few positions below 2^32 - 1, in registers of a GPU's thread: all indices are known to
// the compiler, since every place is looked at whatever the set holds.
template <int kMost = kRegisterPicks>
class PickedFew {
 public:
  KHOP_HD PickedFew() {
    KHOP_UNROLL
    for (int j = 0; j < kMost; ++j) picked_[j] = kNone;
  }
  KHOP_HD bool contains(uint32_t position) const {
    bool found = false;
    KHOP_UNROLL
    for (int j = 0; j < kMost; ++j) found |= picked_[j] == position;
    return found;
  }
  // At most kMost of them.
  KHOP_HD void add(uint32_t position) {
    KHOP_UNROLL
    for (int j = kMost - 1; j > 0; --j) picked_[j] = picked_[j - 1];
    picked_[0] = position;
  }

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFFu;
  uint32_t picked_[kMost];
};

// Draws at most kMost positions; `degree` is below 2^32.
template <int kMost = kRegisterPicks, class Position>
KHOP_HD void pick_few_without_replacement(const NodeDraws& draws, int64_t degree, int64_t count,
                                          Position* out) {
  PickedFew<kMost> few;
  pick_without_replacement(
      draws, degree, count, out,
      [&few](int64_t, Position t) { return few.contains(static_cast<uint32_t>(t)); },
      [&few](Position t) { few.add(static_cast<uint32_t>(t)); });
}

}  // namespace khop
