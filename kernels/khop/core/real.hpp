// Logarithms and exponentials that are the same, bit for bit, on every host and device: the
// functions of their mathematics libraries differ in the last digits.
//
// Each is a Taylor series around the nearest point where the function is known, in additions,
// divisions and products that IEEE 754 rounds correctly, in one order; compilers must not fuse
// them, see `product`. Errors are a few units in the last place.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "khop/core/rng.hpp"

namespace khop {

// A product that is rounded before anything is added to it. The host is compiled with
// -ffp-contract=off to the same end.
KHOP_HD double product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

KHOP_HD uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

KHOP_HD double from_bits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kLn2High = 0x1.62e42fefap-1;  // times a number below 2^17: exact
constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;

// log(y) for a finite, normal y > 0. With y = 2^k m and m around 1, it is k log 2 + 2 artanh(s) for
// s = (m - 1) / (m + 1), which is below 0.172.
KHOP_HD double log_of(double y) {
  constexpr uint64_t kMantissa = (uint64_t{1} << 52) - 1;
  constexpr double kSqrt2 = 0x1.6a09e667f3bcdp+0;
  auto exponent = static_cast<int64_t>(bits_of(y) >> 52) - 1023;
  double m = from_bits((bits_of(y) & kMantissa) | uint64_t{1023} << 52);
  if (m > kSqrt2) {
    m = product(m, 0.5);
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double square = product(s, s);
  double series = 1.0 / 25;
  for (int odd = 23; odd >= 3; odd -= 2) series = 1.0 / odd + product(square, series);
  const double of_m = product(2.0, s) + product(product(2.0, s), product(square, series));
  return product(static_cast<double>(exponent), kLn2) + of_m;
}

// log(1 - x) for x in [0, 1], also where 1 - x is 1; not a number for other x.
KHOP_HD double log_one_minus(double x) {
  if (!(x >= 0.0 && x <= 1.0)) return kNotANumber;
  if (x == 1.0) return -kInfinity;
  const double y = 1.0 - x;
  const double lost = (1.0 - y) - x;  // exact: 1 - x is y + lost
  return log_of(y) + lost / y;
}

// 1 - exp(-y) for y >= 0, also where exp(-y) is 1; not a number for other y. With y = k log 2 - r
// and |r| at most half of log 2, it is (1 - 2^-k) - 2^-k (exp(r) - 1).
KHOP_HD double one_minus_exp(double y) {
  if (!(y >= 0.0)) return kNotANumber;
  if (y > 40.0) return 1.0;  // exp(-40) < 2^-54
  const auto k = static_cast<int64_t>(product(y, 1.0 / kLn2) + 0.5);
  const auto times = static_cast<double>(k);
  const double r = (product(times, kLn2High) - y) + product(times, kLn2Low);
  double series = 1.0;  // (exp(r) - 1) / r
  for (int n = 15; n >= 2; --n) series = 1.0 + product(r / n, series);
  const double scale = from_bits(static_cast<uint64_t>(1023 - k) << 52);
  return (1.0 - scale) - product(scale, product(r, series));
}

}  // namespace khop
