// Compiled for AVX2; see simd_picker.hpp.
#include <immintrin.h>

#include "khop/cpu/normal_lanes.hpp"
#include "khop/cpu/simd_picker.hpp"

namespace khop::cpu {
namespace {

__m256i load_eight(const uint32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

struct Avx2 {
  using V = __m256i;
  static constexpr int kWidth = 4;

  static V all(uint32_t value) { return _mm256_set1_epi64x(value); }
  static V load(const uint32_t* from) {
    return _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void store(uint32_t* to, V a) {
    const __m256i lower = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(a, lower)));
  }
  // Words of two lower halves each: the odd ones of 32-bit lanes are `high`.
  static V joined(V low, V high) {
    return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xAA);
  }
  // Of the first `count` lanes.
  static int64_t append_below(V words, uint64_t limit, int64_t count, int64_t first,
                              uint64_t* out_words, int64_t* places) {
    uint64_t own[kWidth];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(own), words);
    int64_t found = 0;
    for (int64_t i = 0; i < (count < kWidth ? count : kWidth); ++i) {
      out_words[found] = own[i];
      places[found] = first + i;
      found += static_cast<int64_t>(own[i] <= limit);
    }
    return found;
  }
  static int64_t count_smaller(const uint64_t* words, uint64_t value) {
    // There are signed comparisons alone.
    const V top = _mm256_set1_epi64x(INT64_MIN);
    const V own = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const V*>(words)), top);
    const V all = _mm256_xor_si256(_mm256_set1_epi64x(static_cast<long long>(value)), top);
    const __m256d smaller = _mm256_castsi256_pd(_mm256_cmpgt_epi64(all, own));
    return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_pd(smaller)));
  }
  static V multiply(V a, V b) { return _mm256_mul_epu32(a, b); }
  static V upper(V a) { return _mm256_srli_epi64(a, 32); }
  static V subtract(V a, V b) { return _mm256_sub_epi64(a, b); }
  static V exclusive_or(V a, V b, V c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }

  // Floyd's step: a position picked before gives way to the row's position degree - back.
  static void replace_repeated(uint32_t* picks, int i, const uint32_t* degree, uint32_t back) {
    for (int lane = 0; lane < kLanes; lane += 8) {
      uint32_t* const own = picks + i * kLanes + lane;
      const __m256i picked = load_eight(own);
      __m256i seen = _mm256_setzero_si256();
      for (int j = 0; j < i; ++j) {
        const __m256i earlier = load_eight(picks + j * kLanes + lane);
        seen = _mm256_or_si256(seen, _mm256_cmpeq_epi32(picked, earlier));
      }
      const __m256i last =
          _mm256_sub_epi32(load_eight(degree + lane), _mm256_set1_epi32(static_cast<int>(back)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(own), _mm256_blendv_epi8(picked, last, seen));
    }
  }
};

}  // namespace

void pick_simd_avx2(uint64_t key, const SimdRows& rows, int count, bool replace, uint32_t* picks) {
  VectorPicker<Avx2>::pick(key, rows, count, replace, picks);
}

int64_t below_avx2(uint64_t key, uint32_t tree, const SimdNodes& nodes, uint64_t limit,
                   int64_t first, uint64_t* words, int64_t* places) {
  return VectorPicker<Avx2>::below(key, tree, nodes, limit, first, words, places);
}

uint64_t kth_avx2(const uint64_t* words, int64_t count, int64_t k) {
  return VectorPicker<Avx2>::kth(words, count, k);
}

NormalFunctions normal_avx2() {
  return {&NormalLanes::logs, &NormalLanes::variates, &NormalLanes::cdf};
}

}  // namespace khop::cpu
