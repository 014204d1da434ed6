#include "khop/cpu/simd.hpp"

#include <algorithm>

#include "khop/core/pick.hpp"
#include "khop/cpu/normal_lanes.hpp"

namespace khop::cpu {

#ifdef KHOP_X86
void pick_simd_avx2(uint64_t, const SimdRows&, int, bool, uint32_t*);
void pick_simd_avx512(uint64_t, const SimdRows&, int, bool, uint32_t*);
int64_t below_avx2(uint64_t, uint32_t, const SimdNodes&, uint64_t, int64_t, uint64_t*, int64_t*);
int64_t below_avx512(uint64_t, uint32_t, const SimdNodes&, uint64_t, int64_t, uint64_t*, int64_t*);
uint64_t kth_avx2(const uint64_t*, int64_t, int64_t);
uint64_t kth_avx512(const uint64_t*, int64_t, int64_t);
NormalFunctions normal_avx2();
NormalFunctions normal_avx512();
#endif

namespace {

// A row after the other: for machines whose vector units we do not know.
void pick_simd_portable(uint64_t key, const SimdRows& rows, int count, bool replace,
                        uint32_t* picks) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint64_t node = static_cast<uint64_t>(rows.node_high[lane]) << 32 | rows.node_low[lane];
    const NodeDraws draws{key, node, rows.tree[lane]};
    uint32_t own[kScanLimit];
    if (replace) {
      pick_with_replacement(draws, rows.degree[lane], count, own);
    } else {
      pick_without_replacement_scan(draws, rows.degree[lane], count, own);
    }
    for (int i = 0; i < count; ++i) picks[i * kLanes + lane] = own[i];
  }
}

int64_t below_portable(uint64_t key, uint32_t tree, const SimdNodes& nodes, uint64_t limit,
                       int64_t first, uint64_t* words, int64_t* places) {
  int64_t found = 0;
  for (int64_t i = 0; i < nodes.count; ++i) {
    const uint64_t high = nodes.high == nullptr ? 0 : nodes.high[i];
    words[found] = first_64_bits(NodeDraws{key, high << 32 | nodes.low[i], tree}.block(0));
    places[found] = first + i;
    found += static_cast<int64_t>(words[found] <= limit);
  }
  return found;
}

uint64_t kth_portable(const uint64_t* words, int64_t count, int64_t k) {
  uint64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t smaller = 0;
    for (int64_t j = 0; j < count; ++j) smaller += static_cast<int64_t>(words[j] < words[i]);
    if (smaller < k && words[i] > found) found = words[i];
  }
  return found;
}

std::vector<SimdPicker> find_pickers() {
  std::vector<SimdPicker> found;
#ifdef KHOP_X86
  if (__builtin_cpu_supports("avx512f"))
    found.push_back({"avx512", pick_simd_avx512, below_avx512, kth_avx512, normal_avx512()});
  if (__builtin_cpu_supports("avx2"))
    found.push_back({"avx2", pick_simd_avx2, below_avx2, kth_avx2, normal_avx2()});
#endif
  found.push_back({"portable",
                   pick_simd_portable,
                   below_portable,
                   kth_portable,
                   {&NormalLanes::logs, &NormalLanes::variates, &NormalLanes::cdf}});
  return found;
}

}  // namespace

const std::vector<SimdPicker>& simd_pickers() {
  static const std::vector<SimdPicker> pickers = find_pickers();
  return pickers;
}

void draw_words(uint64_t key, const int64_t* nodes, int64_t count, uint64_t* words) {
  constexpr int64_t kPiece = 512;
  uint32_t low[kPiece + kLanes] = {};
  uint32_t high[kPiece + kLanes] = {};
  uint64_t drawn[kPiece + kLanes];
  int64_t places[kPiece + kLanes];
  const SimdPicker& picker = simd_pickers().front();
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t size = std::min(kPiece, count - first);
    for (int64_t i = 0; i < size; ++i) {
      low[i] = static_cast<uint32_t>(nodes[first + i]);
      high[i] = static_cast<uint32_t>(static_cast<uint64_t>(nodes[first + i]) >> 32);
    }
    picker.below(key, 0, {low, high, size}, ~uint64_t{0}, 0, drawn, places);  // all are
    std::copy_n(drawn, size, words + first);
  }
}

}  // namespace khop::cpu
