// Compiled for AVX-512; see simd_picker.hpp.
#include <immintrin.h>

#include "khop/cpu/simd_picker.hpp"

namespace khop::cpu {
namespace {

struct Avx512 {
  using V = __m512i;
  static constexpr int kWidth = 8;

  static V all(uint32_t value) { return _mm512_set1_epi64(value); }
  static V load(const uint32_t* from) {
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void store(uint32_t* to, V a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi64_epi32(a));
  }
  // Words of two lower halves each.
  static void store_pair(uint64_t* to, V low, V high) {
    // Blended: the odd ones of the 32-bit lanes are `high`.
    _mm512_storeu_si512(to, _mm512_mask_blend_epi32(0xAAAA, low, _mm512_slli_epi64(high, 32)));
  }
  static V multiply(V a, V b) { return _mm512_mul_epu32(a, b); }
  static V upper(V a) { return _mm512_srli_epi64(a, 32); }
  static V subtract(V a, V b) { return _mm512_sub_epi64(a, b); }
  static V exclusive_or(V a, V b, V c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }

  // Floyd's step: a position picked before gives way to the row's position degree - back.
  static void replace_repeated(uint32_t* picks, int i, const uint32_t* degree, uint32_t back) {
    const __m512i picked = _mm512_loadu_si512(picks + i * kLanes);
    __mmask16 seen = 0;
    for (int j = 0; j < i; ++j) {
      seen |= _mm512_cmpeq_epi32_mask(picked, _mm512_loadu_si512(picks + j * kLanes));
    }
    const __m512i last =
        _mm512_sub_epi32(_mm512_loadu_si512(degree), _mm512_set1_epi32(static_cast<int>(back)));
    _mm512_storeu_si512(picks + i * kLanes, _mm512_mask_mov_epi32(picked, seen, last));
  }
};

}  // namespace

void pick_simd_avx512(uint64_t key, const SimdRows& rows, int count, bool replace,
                      uint32_t* picks) {
  VectorPicker<Avx512>::pick(key, rows, count, replace, picks);
}

void words_avx512(uint64_t key, uint32_t tree, const uint32_t* node_low, const uint32_t* node_high,
                  int64_t count, uint64_t* words) {
  VectorPicker<Avx512>::words(key, tree, node_low, node_high, count, words);
}

}  // namespace khop::cpu
