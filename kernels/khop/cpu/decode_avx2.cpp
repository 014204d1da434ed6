// Compiled for AVX2 and F16C; see decode.cpp.
#include <immintrin.h>

#include "khop/cpu/decode_range.hpp"

namespace khop::cpu {
namespace {

struct Lanes256 {
  static constexpr int64_t kCount = 8;

  template <Encoding kEncoding>
  static void decode(char* to, const char* from, int64_t at, const Codec& codec) {
    __m256 values;
    if constexpr (kEncoding == Encoding::kBfloat16) {
      const __m256i bits = _mm256_cvtepu16_epi32(load_128(from + 2 * at));
      values = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    } else if constexpr (kEncoding == Encoding::kFloat16) {
      values = _mm256_cvtph_ps(load_128(from + 2 * at));
    } else if constexpr (kEncoding == Encoding::kFloat8) {
      values = from_float8_codes(_mm256_cvtepu8_epi32(load_64(from + at)));
    } else {
      const __m256 codes = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_64(from + at)));
      const __m256 scaled = _mm256_mul_ps(codes, _mm256_loadu_ps(codec.scale + at));
      values = _mm256_add_ps(scaled, _mm256_loadu_ps(codec.zero + at));
    }
    _mm256_storeu_ps(reinterpret_cast<float*>(to) + at, values);
  }

  static __m128i load_128(const char* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static __m128i load_64(const char* from) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  }

  // As in decode_avx512.cpp.
  static __m256 from_float8_codes(__m256i codes) {
    const __m256i largest = _mm256_set1_epi32(0x7f);
    const __m256i rest = _mm256_and_si256(codes, largest);
    const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(codes, rest), 24);
    const __m256i normal =
        _mm256_add_epi32(_mm256_slli_epi32(rest, 20), _mm256_set1_epi32((127 - 7) << 23));
    const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(rest), _mm256_set1_ps(0x1p-9f));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), rest);
    const __m256i is_nan = _mm256_cmpeq_epi32(rest, largest);
    __m256i bits = _mm256_blendv_epi8(normal, _mm256_castps_si256(small), is_small);
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc00000), is_nan);
    return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
  }
};

}  // namespace

int64_t decode_avx2(const RowTable& table, const int32_t* rows, int64_t begin, int64_t end,
                    const RowTarget& target, const Codec& codec) {
  return decode_range<Lanes256>(table, rows, begin, end, target, codec);
}
int64_t decode_avx2(const RowTable& table, const int64_t* rows, int64_t begin, int64_t end,
                    const RowTarget& target, const Codec& codec) {
  return decode_range<Lanes256>(table, rows, begin, end, target, codec);
}

}  // namespace khop::cpu
