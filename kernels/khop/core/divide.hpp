// Division by a number that is known before a step runs, by a multiplication.
//
// GPUs have no instruction for `/`: between 64-bit numbers that only the running program knows, it
// is a loop-free routine of about a hundred instructions, with a shorter way for numbers below
// 2^32. Here it is the upper half of a product and a shift (Granlund and Montgomery, "Division by
// Invariant Integers using Multiplication", PLDI 1994).
//
// With 2^(l - 1) < d <= 2^l and m = ceil(2^(63 + l) / d), m * d exceeds 2^(63 + l) by less than d.
// For n < 2^63 the quotient n * m / 2^(63 + l) is then above n / d by less than 1 / d, so both have
// the same integer part. m has 64 bits, and n is doubled so that 2^64 can be divided by.
#pragma once

#include <cstdint>

#include "khop/core/rng.hpp"

namespace khop {

class Divider {
 public:
  // By a number from 1 to 2^63 - 1.
  explicit Divider(int64_t divisor) : divisor_(divisor) {
    while (shift_ < 63 && (int64_t{1} << shift_) < divisor) ++shift_;
    const unsigned __int128 power = static_cast<unsigned __int128>(1) << (63 + shift_);
    const auto by = static_cast<unsigned __int128>(divisor);
    multiplier_ = static_cast<uint64_t>((power + by - 1) / by);
  }

  KHOP_HD int64_t divisor() const { return divisor_; }

  // Of a number that is not negative.
  KHOP_HD int64_t quotient(int64_t number) const {
    return static_cast<int64_t>(high_product(multiplier_, static_cast<uint64_t>(number) << 1) >>
                                shift_);
  }
  // Of the same number, given its quotient.
  KHOP_HD int64_t remainder(int64_t number, int64_t quotient) const {
    return number - quotient * divisor_;
  }

 private:
  int64_t divisor_;
  uint64_t multiplier_;
  int shift_ = 0;
};

}  // namespace khop
