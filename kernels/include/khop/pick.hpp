// Which neighbours of a row are drawn: positions in [0, degree), in one defined order.
//
// Without replacement this is Floyd's algorithm (Bentley & Floyd, CACM 30(9), 1987): k draws
// whatever the degree. Draw i picks t in [0, degree - k + i]; if t was picked before, the row's
// position degree - k + i is taken instead. Every k-subset is equally likely.
#pragma once

#include <cstdint>

#include "khop/rng.hpp"

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
    return block_.word[used_++];
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

// `seen(i, t)` says whether t is among out[0..i); `note(t)` records what was picked.
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

}  // namespace khop
