// Logarithms, and normal variates and their distribution function, sixteen at a time, in the vector
// instructions of the file that includes this.
//
// Each is a series of additions, products, divisions and square roots, which IEEE 754 rounds, in
// one order. So all instruction sets give the same bits.
//
// As simd_picker.hpp, to be included by files for one instruction set only: nothing here is visible
// to other files, and nothing here calls an inline function of another header.
#pragma once

#include <cstdint>
#include <cstring>

#include "khop/cpu/simd.hpp"

namespace khop::cpu {
namespace {

class NormalLanes {
 public:
  // For positive values that are not subnormal.
  static void logs(const double* values, int64_t count, double* out) {
    each_block(values, count, out, &log_block);
  }

  static void variates(const uint64_t* words, int64_t count, double* out) {
    each_block(words, count, out, &variate_block);
  }

  static void cdf(const double* z, int64_t count, double* out) {
    each_block(z, count, out, &cdf_block);
  }

 private:
  static constexpr int kBlock = 16;
  static constexpr int kTerms = 4;  // of a sum, before the next look at whether it still changes
  static constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  static constexpr double kTau = 6.283185307179586;
  static constexpr double kSqrtTau = 2.5066282746310002;
  static constexpr double kFar = 8.3;  // from here on the distribution function is 1

  typedef double Values __attribute__((vector_size(kBlock * sizeof(double))));
  typedef uint64_t Words __attribute__((vector_size(kBlock * sizeof(uint64_t))));

  template <class T>
  static void each_block(const T* in, int64_t count, double* out, void (*map)(const T*, double*)) {
    int64_t i = 0;
    for (; i + kBlock <= count; i += kBlock) map(in + i, out + i);
    if (i == count) return;
    T rest[kBlock];
    double mapped[kBlock];
    for (int l = 0; l < kBlock; ++l) rest[l] = in[i + l < count ? i + l : i];
    map(rest, mapped);
    for (int l = 0; i + l < count; ++l) out[i + l] = mapped[l];
  }

  // Numbers below 2^52, exactly.
  static void exact(const Words& numbers, Values* out) {
    const Words bits = numbers | uint64_t{0x433} << 52;
    *out = (Values)bits - 0x1p52;
  }

  // y = 2^k m with m around 1: log y = k log 2 + 2 artanh(s) for s = (m - 1) / (m + 1).
  static void log_of(const Values& y, Values* out) {
    const Words bits = (Words)y;
    const Words mantissa = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{0x3FE} << 52;
    Values m = (Values)mantissa;
    const auto is_low = m < 0.7071067811865476;
    m = is_low ? m * 2.0 : m;
    Values exponent;
    exact(bits >> 52, &exponent);
    exponent = exponent - (is_low ? Values{} + 1023.0 : Values{} + 1022.0);
    const Values s = (m - 1.0) / (m + 1.0);
    const Values square = s * s;
    Values series = Values{} + 1.0 / 25.0;
    for (int odd = 23; odd > 0; odd -= 2) series = 1.0 / odd + series * square;
    *out = exponent * kLn2 + 2.0 * s * series;
  }

  static void log_block(const double* in, double* out) {
    Values y, log;
    std::memcpy(&y, in, sizeof(y));
    log_of(y, &log);
    std::memcpy(out, &log, sizeof(log));
  }

  // Box and Muller: the upper half of a word gives the radius, the lower the angle.
  static void variate_block(const uint64_t* in, double* out) {
    Words words;
    std::memcpy(&words, in, sizeof(words));
    Values radius, turns, log;
    exact(words >> 32, &radius);
    log_of((radius + 0.5) * 0x1p-32, &log);
    log = -2.0 * log;
    exact(words & uint64_t{0xFFFFFFFF}, &turns);
    turns = turns * 0x1p-32 - 0.5;
    const Values x = ((turns < 0.0 ? -turns : turns) - 0.25) * kTau;  // cos(2 pi turns) = sin(x)
    const Values square = x * x;
    Values series = Values{} + 1.0;
    for (int n = 24; n > 0; n -= 2) series = 1.0 - series * square / double(n * (n + 1));
    const Values cosine = x * series;
    for (int l = 0; l < kBlock; ++l) out[l] = __builtin_sqrt(log[l]) * cosine[l];
  }

  static void cdf_block(const double* in, double* out) {
    Values z;
    std::memcpy(&z, in, sizeof(z));
    z = z < -kFar ? Values{} - kFar : z;
    z = z > kFar ? Values{} + kFar : z;
    const Values square = z * z;
    Values term = z, total = z;
    // Until terms are too small to change a sum. From then on they shrink, and further terms change
    // nothing. Sums that are no numbers do not count.
    double odd = 1.0;
    bool changed = true;
    while (changed) {
      Values before = total;
      for (int i = 0; i < kTerms; ++i) {
        odd += 2.0;
        term = term * square / odd;
        before = total;
        total = total + term;
      }
      const auto differs = (total < before) | (total > before);
      changed = false;
      for (int l = 0; l < kBlock; ++l) changed |= differs[l] != 0;
    }
    // exp(-z^2 / 2): the 64th power of a series.
    const Values x = square * 0.5 * 0x1p-6;
    Values power = Values{} + 1.0;
    for (int n = 18; n > 0; --n) power = 1.0 + power * x / double(n);
    for (int i = 0; i < 6; ++i) power = power * power;
    Values chance = 0.5 + total * (1.0 / power) / kSqrtTau;
    chance = chance < 0.0 ? Values{} : chance;
    chance = chance > 1.0 ? Values{} + 1.0 : chance;
    std::memcpy(out, &chance, sizeof(chance));
  }
};

}  // namespace
}  // namespace khop::cpu
