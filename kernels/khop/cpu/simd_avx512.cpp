// Compiled for AVX-512; see simd_picker.hpp.
#include <immintrin.h>

#include "khop/cpu/normal_lanes.hpp"
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
  // Words of two lower halves each: the odd ones of 32-bit lanes are `high`.
  static V joined(V low, V high) {
    return _mm512_mask_blend_epi32(0xAAAA, low, _mm512_slli_epi64(high, 32));
  }
  // Of the first `count` lanes.
  static int64_t append_below(V words, uint64_t limit, int64_t count, int64_t first,
                              uint64_t* out_words, int64_t* places) {
    const __mmask8 lanes =
        static_cast<__mmask8>(count >= 8 ? 0xFFu : (1u << (count > 0 ? count : 0)) - 1);
    const __mmask8 kept = _mm512_mask_cmple_epu64_mask(
        lanes, words, _mm512_set1_epi64(static_cast<long long>(limit)));
    const V own =
        _mm512_add_epi64(_mm512_set1_epi64(first), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    _mm512_storeu_si512(out_words, _mm512_maskz_compress_epi64(kept, words));
    _mm512_storeu_si512(places, _mm512_maskz_compress_epi64(kept, own));
    return __builtin_popcount(kept);
  }
  static int64_t count_smaller(const uint64_t* words, uint64_t value) {
    const V all = _mm512_set1_epi64(static_cast<long long>(value));
    return __builtin_popcount(_mm512_cmplt_epu64_mask(_mm512_loadu_si512(words), all));
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

int64_t below_avx512(uint64_t key, uint32_t tree, const SimdNodes& nodes, uint64_t limit,
                     int64_t first, uint64_t* words, int64_t* places) {
  return VectorPicker<Avx512>::below(key, tree, nodes, limit, first, words, places);
}

uint64_t kth_avx512(const uint64_t* words, int64_t count, int64_t k) {
  return VectorPicker<Avx512>::kth(words, count, k);
}

NormalFunctions normal_avx512() {
  return {&NormalLanes::logs, &NormalLanes::variates, &NormalLanes::cdf};
}

}  // namespace khop::cpu
