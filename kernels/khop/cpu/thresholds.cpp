#include "khop/cpu/thresholds.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace khop::cpu {
namespace {

// One row. `masses` and `shares` are its own, or null.
struct MassRow {
  const double* masses;
  const double* shares;
  int64_t count;
  int64_t asked;

  bool takes_all() const { return asked < 0 || asked >= count; }
};

// What a row is worked out in.
struct Scratch {
  std::vector<double> squares;   // of shares
  std::vector<double> inverses;  // 1 / mass or share^2 / mass
  std::vector<uint8_t> sure;
};

// The factor of a row that does not take all, by its masses.
template <bool kShares>
double open_scale(const MassRow& row, double target, Scratch& scratch) {
  const auto count = static_cast<std::size_t>(row.count);
  scratch.inverses.resize(count);
  scratch.sure.assign(count, 0);
  if (kShares) scratch.squares.resize(count);
  double* const inverses = scratch.inverses.data();
  double* const squares = scratch.squares.data();
  uint8_t* const sure = scratch.sure.data();
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

double scale_of(const MassRow& row, Scratch& scratch) {
  const auto degree = static_cast<double>(row.count);
  const auto asked = static_cast<double>(row.asked);
  if (!row.takes_all()) {
    if (row.shares != nullptr) return open_scale<true>(row, 1.0 / asked - 1.0 / degree, scratch);
    const double target = degree * degree / asked;
    if (row.masses == nullptr) return degree / target;  // below 1: no entry is certain
    return open_scale<false>(row, target, scratch);
  }
  const double size = row.shares == nullptr ? std::max(degree, 1.0) : 1.0;
  double scale = row.asked > 0 ? asked / size : 0.0;
  if (row.masses == nullptr) return row.count > 0 ? std::max(scale, 1.0) : scale;
  for (int64_t i = 0; i < row.count; ++i) scale = std::max(scale, 1.0 / row.masses[i]);
  return scale;
}

template <class F>
void each_row(const MassRows& rows, F&& f) {
  int64_t begin = 0;
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const double* const masses = rows.masses == nullptr ? nullptr : rows.masses + begin;
    const double* const shares = rows.shares == nullptr ? nullptr : rows.shares + begin;
    f(r, begin, MassRow{masses, shares, rows.counts[r], rows.asked[r]});
    begin += rows.counts[r];
  }
}

}  // namespace

void row_scales(const MassRows& rows, double* scales) {
  Scratch scratch;
  each_row(rows,
           [&](int64_t r, int64_t, const MassRow& row) { scales[r] = scale_of(row, scratch); });
}

void row_chances(const MassRows& rows, double* chances) {
  Scratch scratch;
  each_row(rows, [&](int64_t, int64_t begin, const MassRow& row) {
    double* const own = chances + begin;
    if (row.takes_all()) {
      std::fill_n(own, row.count, 1.0);
      return;
    }
    const double scale = scale_of(row, scratch);
    for (int64_t i = 0; i < row.count; ++i) {
      own[i] = std::min(row.masses == nullptr ? scale : scale * row.masses[i], 1.0);
    }
  });
}

void common_chances(const int64_t* masses, int64_t n, int64_t count, double* chances) {
  int64_t left = 0;  // sum of the masses that are not certain
  for (int64_t i = 0; i < n; ++i) left += masses[i];
  // The largest mass is certain as long as it is no less than its share of what is left. Shares
  // only fall, so masses far below wait outside of the heap: it is filled again each time the share
  // has halved.
  std::vector<int64_t> heap;
  double bound = std::numeric_limits<double>::infinity();  // masses below are not in the heap
  int64_t certain = 0;
  for (; certain < count - 1; ++certain) {
    const double share = static_cast<double>(left) / static_cast<double>(count - certain);
    if (share <= bound) {
      const double lower = share / 2;
      for (int64_t i = 0; i < n; ++i) {
        const auto mass = static_cast<double>(masses[i]);
        if (mass >= lower && mass < bound) heap.push_back(masses[i]);
      }
      std::make_heap(heap.begin(), heap.end());
      bound = lower;
    }
    if (heap.empty() || static_cast<double>(heap.front()) < share) break;
    left -= heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
  }
  const double factor = static_cast<double>(count - certain) / static_cast<double>(left);
  for (int64_t i = 0; i < n; ++i) {
    chances[i] = std::min(static_cast<double>(masses[i]) * factor, 1.0);
  }
}

}  // namespace khop::cpu
