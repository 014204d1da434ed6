#include "khop/cpu/thresholds.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace khop::cpu {
namespace {

// One row that does not take all of its entries.
struct OpenRow {
  const double* masses;
  const double* shares;
  std::size_t count;
  double target;  // right side of the equation
};

// What a row is worked out in.
struct Scratch {
  std::vector<double> squares;   // of shares
  std::vector<double> inverses;  // 1 / mass or share^2 / mass
  std::vector<uint8_t> sure;
};

template <bool kShares>
double scale_of(const OpenRow& row, Scratch& scratch) {
  const std::size_t count = row.count;
  scratch.inverses.resize(count);
  scratch.sure.assign(count, 0);
  if (kShares) scratch.squares.resize(count);
  double* const inverses = scratch.inverses.data();
  double* const squares = scratch.squares.data();
  uint8_t* const sure = scratch.sure.data();
  double target = row.target;
  double all_squares = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    if (kShares) {
      squares[i] = row.shares[i] * row.shares[i];
      all_squares += squares[i];
    }
    inverses[i] = (kShares ? squares[i] : 1.0) / row.masses[i];
  }
  if (kShares) target += all_squares;
  while (true) {
    double certain = 0.0;
    double sum = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      if (kShares) certain += sure[i] != 0 ? squares[i] : 0.0;
      sum += sure[i] != 0 ? 0.0 : inverses[i];
    }
    if (!kShares) certain = static_cast<double>(std::count(sure, sure + count, uint8_t{1}));
    const double scale = sum / (target - certain);
    uint8_t more = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto becomes = static_cast<uint8_t>(sure[i] | (scale * row.masses[i] >= 1.0));
      more = static_cast<uint8_t>(more | (becomes ^ sure[i]));
      sure[i] = becomes;
    }
    if (more == 0) return scale;
  }
}

}  // namespace

void row_scales(const MassRows& rows, double* scales) {
  Scratch scratch;
  int64_t begin = 0;
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const int64_t count = rows.counts[r];
    const int64_t asked = rows.asked[r];
    const auto degree = static_cast<double>(count);
    if (asked >= 0 && asked < count) {
      const auto fanout = static_cast<double>(asked);
      const auto size = static_cast<std::size_t>(count);
      if (rows.shares == nullptr) {
        const OpenRow row{rows.masses + begin, nullptr, size, degree * degree / fanout};
        scales[r] = scale_of<false>(row, scratch);
      } else {
        const double target = 1.0 / fanout - 1.0 / degree;
        const OpenRow row{rows.masses + begin, rows.shares + begin, size, target};
        scales[r] = scale_of<true>(row, scratch);
      }
    } else {
      const double size = rows.shares == nullptr ? std::max(degree, 1.0) : 1.0;
      double scale = asked > 0 ? static_cast<double>(asked) / size : 0.0;
      for (int64_t i = begin; i < begin + count; ++i) scale = std::max(scale, 1.0 / rows.masses[i]);
      scales[r] = scale;
    }
    begin += count;
  }
}

void common_chances(const int64_t* masses, int64_t n, int64_t count, double* chances) {
  std::vector<int64_t> heap(masses, masses + n);
  std::make_heap(heap.begin(), heap.end());
  int64_t left = 0;  // sum of the masses in the heap
  for (const int64_t mass : heap) left += mass;
  int64_t certain = 0;
  while (certain < count - 1) {
    const int64_t largest = heap.front();
    const double share = static_cast<double>(left) / static_cast<double>(count - certain);
    if (static_cast<double>(largest) < share) break;
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    left -= largest;
    ++certain;
  }
  const double factor = static_cast<double>(count - certain) / static_cast<double>(left);
  for (int64_t i = 0; i < n; ++i) {
    chances[i] = std::min(static_cast<double>(masses[i]) * factor, 1.0);
  }
}

}  // namespace khop::cpu
