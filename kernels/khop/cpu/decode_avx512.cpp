// Compiled for AVX-512; see decode.cpp.
#include <immintrin.h>

#include "khop/cpu/decode_range.hpp"

namespace khop::cpu {
namespace {

struct Lanes512 {
  static constexpr int64_t kCount = 16;

  template <Encoding kEncoding>
  static void decode(char* to, const char* from, int64_t at, const Codec& codec) {
    __m512 values;
    if constexpr (kEncoding == Encoding::kBfloat16) {
      const __m256i bits = load_256(from + 2 * at);
      values = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    } else if constexpr (kEncoding == Encoding::kFloat16) {
      values = _mm512_cvtph_ps(load_256(from + 2 * at));
    } else if constexpr (kEncoding == Encoding::kFloat8) {
      values = from_float8_codes(_mm512_cvtepu8_epi32(load_128(from + at)));
    } else {
      const __m512 codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_128(from + at)));
      const __m512 scaled = _mm512_mul_ps(codes, _mm512_loadu_ps(codec.scale + at));
      values = _mm512_add_ps(scaled, _mm512_loadu_ps(codec.zero + at));
    }
    _mm512_storeu_ps(reinterpret_cast<float*>(to) + at, values);
  }

  static __m256i load_256(const char* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static __m128i load_128(const char* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }

  // Numbers without exponent are converted as integers: float32's own ones may count as zero.
  static __m512 from_float8_codes(__m512i codes) {
    const __m512i rest = _mm512_and_si512(codes, _mm512_set1_epi32(0x7f));
    const __m512i sign = _mm512_slli_epi32(_mm512_xor_si512(codes, rest), 24);
    const __m512i normal =
        _mm512_add_epi32(_mm512_slli_epi32(rest, 20), _mm512_set1_epi32((127 - 7) << 23));
    const __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(rest), _mm512_set1_ps(0x1p-9f));
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(rest, _mm512_set1_epi32(8));
    const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(rest, _mm512_set1_epi32(0x7f));
    __m512i bits = _mm512_mask_blend_epi32(is_small, normal, _mm512_castps_si512(small));
    bits = _mm512_mask_blend_epi32(is_nan, bits, _mm512_set1_epi32(0x7fc00000));
    return _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
  }
};

}  // namespace

int64_t decode_avx512(const RowTable& table, const int32_t* rows, int64_t begin, int64_t end,
                      const RowTarget& target, const Codec& codec) {
  return decode_range<Lanes512>(table, rows, begin, end, target, codec);
}
int64_t decode_avx512(const RowTable& table, const int64_t* rows, int64_t begin, int64_t end,
                      const RowTarget& target, const Codec& codec) {
  return decode_range<Lanes512>(table, rows, begin, end, target, codec);
}

}  // namespace khop::cpu
