// Reads ahead for loops that copy rows of a table. Each file that includes it compiles one of its
// own: some use instructions that not every machine has.
#pragma once

#include <algorithm>
#include <cstdint>

#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {
namespace {

constexpr int64_t kLine = 64;

// Asks for rows of a table that are copied some rows later.
//
// Where the second cache takes many requests, all lines are asked for there, up to 2 KiB of a row.
// On AMD's, rows of 8 bytes then take 0.55 of the time, of 100 bytes 0.63, of 400 bytes 0.73.
//
// Elsewhere a core waits for ten or twelve lines at a time, whatever asked. Two lines of a row are
// enough, and the second cache fetches the others by itself, as it sees the row being read in
// order. On Intel's, rows of 400 bytes take 0.9 of the time that they took when all lines were
// prefetched, rows of 1024 0.8.
class CopyPrefetch {
 public:
  explicit CopyPrefetch(int64_t width) : width_(std::min(width, kMost)) {
    if (width <= kLine) {
      ahead_ = kAsksSecondCache ? 128 : 64;
    } else {
      ahead_ = kAsksSecondCache ? std::min(kWholeAhead, kBytesAhead / width_) : 16;
    }
  }

  // Distance in rows: enough to cover memory latency, few enough to stay in the cache.
  int64_t ahead() const { return ahead_; }

  // kInOneLine: a row never crosses lines.
  template <bool kInOneLine>
  void operator()(const char* row) const {
    if (kInOneLine) return prefetch_scattered_line(row);
    if (!kAsksSecondCache) {
      prefetch_line(row);
      return prefetch_line(row + (width_ > 2 * kLine ? kLine : width_ - 1));
    }
    for (int64_t at = 0; at < width_; at += kLine) prefetch_line_to_second(row + at);
    prefetch_line_to_second(row + width_ - 1);
  }

 private:
  static constexpr int64_t kMost = int64_t{2} << 10;
  static constexpr int64_t kBytesAhead = int64_t{16} << 10;
  static constexpr int64_t kWholeAhead = 24;

  int64_t width_;
  int64_t ahead_;
};

}  // namespace
}  // namespace khop::cpu
