#include "khop/cpu/aggregate.hpp"

#include <algorithm>

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

template <class Index, class Combine>
void combine(const WeightedRows<Index>& rows, const float* values, int64_t width, float* out,
             Combine each) {
  const int64_t end = rows.first[rows.num_rows];
  for (int64_t i = 0; i < rows.num_rows; ++i) {
    float* to = out + i * width;
    std::fill_n(to, width, 0.0f);
    for (int64_t e = rows.first[i]; e < rows.first[i + 1]; ++e) {
      if (e + kAhead < end) {
        request(values + static_cast<int64_t>(rows.neighbors[e + kAhead]) * width, width);
      }
      const float* from = values + static_cast<int64_t>(rows.neighbors[e]) * width;
      const float weight = rows.weights == nullptr ? 1.0f : rows.weights[e];
      each(to, from, weight, e == rows.first[i]);
    }
  }
}

}  // namespace

template <class Index>
void aggregate_rows(const WeightedRows<Index>& rows, const float* values, int64_t width,
                    Aggregate how, float* out) {
  if (how == Aggregate::kSum) {
    return combine(rows, values, width, out,
                   [width](float* to, const float* from, float weight, bool) {
                     for (int64_t j = 0; j < width; ++j) to[j] += weight * from[j];
                   });
  }
  const bool is_max = how == Aggregate::kMax;
  combine(rows, values, width, out,
          [width, is_max](float* to, const float* from, float weight, bool is_first) {
            for (int64_t j = 0; j < width; ++j) {
              const float value = weight * from[j];
              const bool replaces = is_max ? value > to[j] : value < to[j];
              if (is_first || replaces || value != value) to[j] = to[j] != to[j] ? to[j] : value;
            }
          });
}

template void aggregate_rows<int32_t>(const WeightedRows<int32_t>&, const float*, int64_t,
                                      Aggregate, float*);
template void aggregate_rows<int64_t>(const WeightedRows<int64_t>&, const float*, int64_t,
                                      Aggregate, float*);

}  // namespace khop::cpu
