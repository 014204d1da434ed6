#include "khop/cpu/simd.hpp"

#include "khop/core/pick.hpp"

namespace khop {

#ifdef KHOP_X86
void pick_lanes_avx2(uint64_t, const RowLanes&, int, bool, uint32_t*);
void pick_lanes_avx512(uint64_t, const RowLanes&, int, bool, uint32_t*);
#endif

namespace {

// A row after the other: for machines whose vector units we do not know.
void pick_lanes_portable(uint64_t key, const RowLanes& rows, int count, bool replace,
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

std::vector<LanePicker> find_pickers() {
  std::vector<LanePicker> found;
#ifdef KHOP_X86
  if (__builtin_cpu_supports("avx512f")) found.push_back({"avx512", pick_lanes_avx512});
  if (__builtin_cpu_supports("avx2")) found.push_back({"avx2", pick_lanes_avx2});
#endif
  found.push_back({"portable", pick_lanes_portable});
  return found;
}

}  // namespace

const std::vector<LanePicker>& lane_pickers() {
  static const std::vector<LanePicker> pickers = find_pickers();
  return pickers;
}

}  // namespace khop
