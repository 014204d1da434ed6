#include "khop/cpu/aggregate.hpp"

#include <algorithm>

#include "khop/cpu/part_of.hpp"
#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {
namespace {

// Neighbours whose rows are requested this far ahead.
constexpr int64_t kAhead = 8;
constexpr int64_t kLine = 64;
constexpr int64_t kLines = 4;  // of a row; the hardware follows from there

void request(const float* row, int64_t width) {
  const auto* bytes = reinterpret_cast<const char*>(row);
  const int64_t lines = std::min(kLines, (width * int64_t{sizeof(float)} + kLine - 1) / kLine);
  for (int64_t line = 0; line < lines; ++line) prefetch_line(bytes + line * kLine);
}

template <class Index, class Find, class Combine>
void combine(const WeightedRows<Index>& rows, Find find, int64_t width, float* out, Combine each) {
  const int64_t end = rows.first[rows.num_rows];
  for (int64_t i = 0; i < rows.num_rows; ++i) {
    float* to = out + i * width;
    std::fill_n(to, width, 0.0f);
    for (int64_t e = rows.first[i]; e < rows.first[i + 1]; ++e) {
      if (e + kAhead < end) request(find(rows.neighbors[e + kAhead]), width);
      const float* from = find(rows.neighbors[e]);
      const float weight = rows.weights == nullptr ? 1.0f : rows.weights[e];
      each(to, from, weight, e == rows.first[i]);
    }
  }
}

template <class Index, class Find>
void reduce(const WeightedRows<Index>& rows, Find find, int64_t width, Aggregate how, float* out) {
  if (how == Aggregate::kSum) {
    return combine(rows, find, width, out,
                   [width](float* to, const float* from, float weight, bool) {
                     for (int64_t j = 0; j < width; ++j) to[j] += weight * from[j];
                   });
  }
  const bool is_max = how == Aggregate::kMax;
  combine(rows, find, width, out,
          [width, is_max](float* to, const float* from, float weight, bool is_first) {
            for (int64_t j = 0; j < width; ++j) {
              const float value = weight * from[j];
              const bool replaces = is_max ? value > to[j] : value < to[j];
              if (is_first || replaces || value != value) to[j] = to[j] != to[j] ? to[j] : value;
            }
          });
}

}  // namespace

template <class Index>
void aggregate_rows(const WeightedRows<Index>& rows, const PartTables& table, Aggregate how,
                    float* out) {
  const int64_t width = table.row_bytes / int64_t{sizeof(float)};
  const auto first_row = [&table](std::size_t part) {
    return reinterpret_cast<const float*>(table.parts[part]);
  };
  if (table.parts.size() == 1) {
    const float* const values = first_row(0);
    return reduce(rows, [=](int64_t row) { return values + row * width; }, width, how, out);
  }
  const auto find = [&](int64_t row) {
    const std::size_t part = part_of(row, table.firsts.data(), table.parts.size());
    return first_row(part) + (row - table.firsts[part]) * width;
  };
  reduce(rows, find, width, how, out);
}

template void aggregate_rows<int32_t>(const WeightedRows<int32_t>&, const PartTables&, Aggregate,
                                      float*);
template void aggregate_rows<int64_t>(const WeightedRows<int64_t>&, const PartTables&, Aggregate,
                                      float*);

}  // namespace khop::cpu
