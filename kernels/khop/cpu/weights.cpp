#include "khop/cpu/weights.hpp"

#include <cmath>
#include <limits>

namespace khop::cpu {
namespace {

constexpr uint64_t kOne = uint64_t{1} << kWeightBits;

// Sums below this would make 2^62 / s overflow: such rows are scaled by a power of two first, which
// changes no digit of any weight.
constexpr double kTiny = 0x1p-500;
constexpr double kLift = 0x1p600;

template <class Weight>
BadWeight sum_of_row(const Weight* weights, int64_t begin, int64_t end, double* sum) {
  double total = 0.0;
  for (int64_t e = begin; e < end; ++e) {
    const auto weight = static_cast<double>(weights[e]);
    // Written so that NaN fails.
    if (!(weight >= 0.0 && weight <= std::numeric_limits<double>::max())) {
      return {BadWeight::Kind::kWeight, -1, e, weight};
    }
    total += weight;
  }
  *sum = total;
  if (std::isinf(total)) return {BadWeight::Kind::kSum, -1, -1, total};
  return {};
}

template <class Weight>
void fill_sums(const Weight* weights, int64_t begin, int64_t end, double sum, uint64_t* sums) {
  const double lift = sum < kTiny ? kLift : 1.0;
  const double scale = static_cast<double>(kOne) / (sum * lift);
  uint64_t total = 0;
  for (int64_t e = begin; e < end; ++e) {
    const double weight = static_cast<double>(weights[e]) * lift;
    if (weight > 0.0) {
      const auto share = static_cast<uint64_t>(weight * scale);
      total += share > 0 ? share : 1;
    }
    sums[e] = total;
  }
}

// Bucket b begins at the number ceil(b * 2^62 / n). One walk over buckets and positions together.
void fill_guide(const uint64_t* sums, int64_t count, uint32_t* guide) {
  const auto n = static_cast<uint64_t>(count);
  const uint64_t step = kOne / n;
  const uint64_t rest = kOne % n;
  uint64_t first = 0;     // floor(b * 2^62 / n)
  uint64_t fraction = 0;  // (b * 2^62) mod n
  int64_t position = 0;
  for (int64_t b = 0; b < count; ++b) {
    const uint64_t begin = first + (fraction > 0);
    while (position < count - 1 && sums[position] <= begin) ++position;
    guide[b] = static_cast<uint32_t>(position);
    first += step;
    fraction += rest;
    if (fraction >= n) {
      fraction -= n;
      ++first;
    }
  }
}

}  // namespace

template <class Ptr, class Weight>
BadWeight build_weight_table(const Ptr* indptr, int64_t num_rows, const Weight* weights,
                             int64_t num_edges, uint64_t* sums, uint32_t* guide) {
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto begin = static_cast<int64_t>(indptr[row]);
    const auto end = static_cast<int64_t>(indptr[row + 1]);
    if (begin < 0 || begin > end || end > num_edges) return {BadWeight::Kind::kRow, row};
    if (begin == end) continue;
    if (end - begin > std::numeric_limits<uint32_t>::max()) return {BadWeight::Kind::kTooLong, row};
    double sum = 0.0;
    BadWeight bad = sum_of_row(weights, begin, end, &sum);
    if (bad.kind != BadWeight::Kind::kNone) {
      bad.row = row;
      return bad;
    }
    fill_sums(weights, begin, end, sum, sums);
    fill_guide(sums + begin, end - begin, guide + begin);
  }
  return {};
}

#define KHOP_INSTANTIATE(Ptr, Weight)                                                             \
  template BadWeight build_weight_table<Ptr, Weight>(const Ptr*, int64_t, const Weight*, int64_t, \
                                                     uint64_t*, uint32_t*);
KHOP_INSTANTIATE(int32_t, float)
KHOP_INSTANTIATE(int32_t, double)
KHOP_INSTANTIATE(int64_t, float)
KHOP_INSTANTIATE(int64_t, double)
#undef KHOP_INSTANTIATE

}  // namespace khop::cpu
