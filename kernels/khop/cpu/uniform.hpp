// Uniform draws from one row at a time: for rows and fan-outs that are too large for lanes.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "khop/core/pick.hpp"
#include "khop/cpu/positions.hpp"

namespace khop::cpu {

class UniformPicker {
 public:
  // Draws `picks` positions in [0, degree); without replacement there must be as many.
  void pick(const NodeDraws& draws, int64_t degree, int64_t picks, bool replace, int64_t* out) {
    if (replace) {
      pick_with_replacement(draws, degree, picks, out);
    } else if (picks <= kScanLimit && degree <= std::numeric_limits<uint32_t>::max()) {
      std::array<uint32_t, kScanLimit> picked;
      pick_without_replacement_scan(draws, degree, picks, picked.data());
      for (int64_t j = 0; j < picks; ++j) out[j] = picked[static_cast<std::size_t>(j)];
    } else {
      seen_.reset(picks);
      pick_without_replacement(
          draws, degree, picks, out,
          [this](int64_t, int64_t position) { return seen_.contains(position); },
          [this](int64_t position) { seen_.add(position); });
    }
  }

 private:
  PositionSet seen_;
};

}  // namespace khop::cpu
