// Numbers in fewer bits than float32: how features are stored, and what is read again.
//
// Widening is exact. Narrowing rounds to the nearest number, of two equally near ones to the even
// one, as hardware does. float8 is e4m3fn: 4 bits of exponent with bias 7, 3 of mantissa, no
// infinity. int8 belongs to a scale and a zero of its column: the number is q * scale + zero, each
// operation rounded to float32.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "khop/core/rng.hpp"

namespace khop {

enum class Encoding { kBfloat16, kFloat16, kFloat8, kInt8 };

constexpr int64_t stored_bytes(Encoding encoding) {
  return encoding == Encoding::kBfloat16 || encoding == Encoding::kFloat16 ? 2 : 1;
}

KHOP_HD uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
KHOP_HD float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

KHOP_HD float from_bfloat16(uint16_t bits) { return from_bits(static_cast<uint32_t>(bits) << 16); }

KHOP_HD float from_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t rest = bits & 0x7fff;
  if (rest >= 0x7c00) {  // infinity, or NaN, which becomes a quiet one as in hardware
    return from_bits(sign | 0x7f800000 | rest << 13 | (rest > 0x7c00 ? 0x400000 : 0));
  }
  if (rest >= 0x400) return from_bits(sign | ((rest << 13) + ((127u - 15u) << 23)));
  const float small = static_cast<float>(rest) * 0x1p-24f;
  return from_bits(sign | bits_of(small));
}

KHOP_HD float from_float8(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24;
  const uint32_t rest = bits & 0x7f;
  if (rest == 0x7f) return from_bits(sign | 0x7fc00000);
  if (rest >= 8) return from_bits(sign | ((rest << 20) + ((127u - 7u) << 23)));
  return from_bits(sign | bits_of(static_cast<float>(rest) * 0x1p-9f));
}

// Compilers must not fuse the two: the host's are told by -ffp-contract=off.
KHOP_HD float from_int8(int8_t value, float scale, float zero) {
#ifdef __CUDA_ARCH__
  const float scaled = __fmul_rn(static_cast<float>(value), scale);
#else
  const float scaled = static_cast<float>(value) * scale;
#endif
  return scaled + zero;
}

inline uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 & 0x8000) | 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Adds a power of two whose last bit is worth as much as the target's smallest number: the sum is
// rounded to it.
inline uint32_t small_part(uint32_t magnitude, float power) {
  return bits_of(from_bits(magnitude) + power) - bits_of(power);
}

inline uint16_t to_float16(float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
  uint32_t result;
  if (magnitude > 0x7f800000) {
    result = 0x7e00;
  } else if (magnitude >= bits_of(0x1p16f)) {
    result = 0x7c00;
  } else if (magnitude < bits_of(0x1p-14f)) {
    result = small_part(magnitude, 0x1p-1f);
  } else {
    result = (magnitude - ((127u - 15u) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  }
  return static_cast<uint16_t>(result | (bits >> 16 & 0x8000));
}

inline uint8_t to_float8(float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
  uint32_t result;
  if (magnitude >= bits_of(480.0f)) {  // also infinity and NaN
    result = 0x7f;
  } else if (magnitude < bits_of(0x1p-6f)) {
    result = small_part(magnitude, 0x1p14f);
  } else {
    result = (magnitude - ((127u - 7u) << 23) + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
  }
  return static_cast<uint8_t>(result | (bits >> 24 & 0x80));
}

// A scale of 0 has one number, its zero.
inline int8_t to_int8(float value, float scale, float zero) {
  if (scale == 0) return 0;
  const double exact = (static_cast<double>(value) - zero) / scale;
  const double bound = exact >= -128 ? (exact <= 127 ? exact : 127) : -128;  // NaN: -128
  return static_cast<int8_t>(bound + 0x1.8p52 - 0x1.8p52);
}

}  // namespace khop
