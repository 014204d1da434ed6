// The loop of gather_parts.cpp. Each file that includes it compiles one of its own: one of them
// uses instructions that not every machine has.
#pragma once

#include <cstring>

#include "khop/cpu/copy_prefetch.hpp"
#include "khop/cpu/gather_parts.hpp"
#include "khop/cpu/part_of.hpp"

namespace khop::cpu {
namespace {

// Whole lines, then the last 64 bytes once more, see gather_avx512.cpp. Of rows of a line or more.
struct LineCopy {
  static constexpr int64_t kWidens = 1;
  void operator()(char* to, const char* from, int64_t bytes) const {
    int64_t at = 0;
    for (; at + kLine <= bytes; at += kLine) std::memcpy(to + at, from + at, kLine);
    if (at < bytes) std::memcpy(to + bytes - kLine, from + bytes - kLine, kLine);
  }
};

template <class Copy>
int64_t gather_parts_range(const PartTables& table, const int64_t* rows, int64_t count, char* out,
                           Copy copy) {
  const int64_t width = table.row_bytes;
  const CopyPrefetch prefetch(width);
  const int64_t ahead = prefetch.ahead();
  const auto end = static_cast<uint64_t>(table.firsts.back());
  const std::size_t num_parts = table.parts.size();
  const int64_t* const firsts = table.firsts.data();
  const auto find = [&](int64_t row) {
    const std::size_t part = part_of(row, firsts, num_parts);
    return table.parts[part] + (row - firsts[part]) * width;
  };
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count && static_cast<uint64_t>(rows[i + ahead]) < end) {
      prefetch.template operator()<false>(find(rows[i + ahead]));
    }
    if (static_cast<uint64_t>(rows[i]) >= end) return i;
    copy(out + i * Copy::kWidens * width, find(rows[i]), width);
  }
  return -1;
}

}  // namespace
}  // namespace khop::cpu
