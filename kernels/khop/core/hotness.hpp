// Probability that a row does not draw one of its neighbours.
#pragma once

#include <cstdint>

#include "khop/core/pick.hpp"
#include "khop/core/real.hpp"

namespace khop {

// The logarithm of the probability that a row of `degree` > 0 neighbours, which is in the frontier
// with probability `in_frontier`, does not draw a certain one of them.
KHOP_HD double log_probability_of_missing(double in_frontier, int64_t degree, int64_t fanout,
                                          bool replace) {
  double drawn = 1.0;
  if (!takes_all(degree, fanout, replace)) {
    const double share = 1.0 / static_cast<double>(degree);
    const auto draws = static_cast<double>(fanout);
    drawn = replace ? one_minus_exp(product(draws, -log_one_minus(share))) : product(draws, share);
  }
  return log_one_minus(product(in_frontier, drawn));
}

// Whether a row adds anything to what its neighbours miss.
KHOP_HD bool is_drawn_from(double in_frontier, int64_t degree, int64_t fanout) {
  return !(in_frontier <= 0) && fanout != 0 && degree > 0;
}

}  // namespace khop
