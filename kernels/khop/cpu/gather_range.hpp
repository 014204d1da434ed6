// The loop of gather.cpp, over rows `begin` to `end`. Each file that includes it compiles one of
// its own: one of them uses instructions that not every machine has.
#pragma once

#include "khop/cpu/copy_prefetch.hpp"
#include "khop/cpu/gather.hpp"

namespace khop::cpu {
namespace {

template <class Index, class Copy>
int64_t gather_range(const RowTable& table, const Index* rows, int64_t begin, int64_t end,
                     const RowTarget& target, Copy copy) {
  const int64_t width = table.row_bytes;
  const int64_t out_width = Copy::kWidens * width;
  const CopyPrefetch prefetch(width);
  const int64_t ahead = prefetch.ahead();
  const auto num_rows = static_cast<uint64_t>(table.num_rows);
  const auto num_places = static_cast<uint64_t>(target.num_rows);
  for (int64_t i = begin; i < end; ++i) {
    if (rows != nullptr && i + ahead < end) {
      const int64_t row = static_cast<int64_t>(rows[i + ahead]);
      if (static_cast<uint64_t>(row) < num_rows) {
        prefetch.template operator()<Copy::kInOneLine>(table.data + row * width);
      }
    }
    const int64_t row = rows == nullptr ? i : static_cast<int64_t>(rows[i]);
    const int64_t place = target.places == nullptr ? i : target.places[i];
    if (static_cast<uint64_t>(row) >= num_rows || static_cast<uint64_t>(place) >= num_places)
      return i;
    copy(target.data + place * out_width, table.data + row * width, width);
  }
  return -1;
}

}  // namespace
}  // namespace khop::cpu
