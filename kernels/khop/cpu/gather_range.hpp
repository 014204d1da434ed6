// The loop of gather.cpp, over rows `begin` to `end`. Each file that includes it compiles one of
// its own: one of them uses instructions that not every machine has.
#pragma once

#include "khop/cpu/gather.hpp"
#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {
namespace {

constexpr int64_t kLine = 64;
// Rows prefetched ahead of the copy: enough to cover memory latency, few enough to stay in L1.
constexpr int64_t kNarrowAhead = 64;
constexpr int64_t kWideAhead = 16;

// Rows of 65 to 128 bytes take 0.87 of the time with the shorter distance.
constexpr int64_t rows_ahead(int64_t width) { return width > kLine ? kWideAhead : kNarrowAhead; }

// Where in a row the second line lies that is prefetched.
constexpr int64_t second_line(int64_t width) { return width > 2 * kLine ? kLine : width - 1; }

// Of a row only two lines are prefetched. A core waits for ten or twelve lines at a time, whatever
// asked; the others the second cache fetches by itself, as it sees the row being read in order.
// Rows of 400 bytes take 0.9 of the time that they took when all lines were prefetched, rows of
// 1024 0.8.
template <class Index, class Copy>
int64_t gather_range(const RowTable& table, const Index* rows, int64_t begin, int64_t end,
                     const RowTarget& target, Copy copy) {
  const int64_t width = table.row_bytes;
  const int64_t out_width = Copy::kWidens * width;
  const int64_t second = second_line(width);
  const int64_t ahead = rows_ahead(width);
  for (int64_t i = begin; i < end; ++i) {
    if (rows != nullptr && i + ahead < end) {
      const int64_t row = static_cast<int64_t>(rows[i + ahead]);
      if (row >= 0 && row < table.num_rows) {
        const char* from = table.data + row * width;
        prefetch_line(from);
        if (!Copy::kInOneLine) prefetch_line(from + second);
      }
    }
    const int64_t row = rows == nullptr ? i : static_cast<int64_t>(rows[i]);
    const int64_t place = target.places == nullptr ? i : target.places[i];
    if (row < 0 || row >= table.num_rows || place < 0 || place >= target.num_rows) return i;
    copy(target.data + place * out_width, table.data + row * width, width);
  }
  return -1;
}

}  // namespace
}  // namespace khop::cpu
