// Compiled for AVX-512; see gather.cpp.
#include <immintrin.h>

#include "khop/cpu/gather_range.hpp"

namespace khop::cpu {
namespace {

// Whole lines, then the last 64 bytes once more: no call, and so few instructions that the core
// looks several rows ahead. Rows of 400 bytes take 0.9 of the time that memcpy takes.
struct LineCopy {
  static constexpr bool kInOneLine = false;
  static constexpr int64_t kWidens = 1;

  void operator()(char* to, const char* from, int64_t bytes) const {
    int64_t at = 0;
    for (; at + kLine <= bytes; at += kLine) copy_line(to + at, from + at);
    if (at < bytes) copy_line(to + bytes - kLine, from + bytes - kLine);
  }

  static void copy_line(char* to, const char* from) {
    _mm512_storeu_si512(to, _mm512_loadu_si512(from));
  }
};

}  // namespace

// Of rows that have at least 64 bytes.
template <class Index>
int64_t gather_lines_avx512(const RowTable& table, const Index* rows, int64_t begin, int64_t end,
                            const RowTarget& target) {
  return gather_range(table, rows, begin, end, target, LineCopy{});
}

template int64_t gather_lines_avx512<int32_t>(const RowTable&, const int32_t*, int64_t, int64_t,
                                              const RowTarget&);
template int64_t gather_lines_avx512<int64_t>(const RowTable&, const int64_t*, int64_t, int64_t,
                                              const RowTarget&);

}  // namespace khop::cpu
