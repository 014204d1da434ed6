#include "khop/cpu/shuffle.hpp"

#include <numeric>
#include <utility>

#include "khop/core/pick.hpp"

namespace khop::cpu {

template <class Index>
void permutation(uint64_t key, int64_t count, Index* out) {
  std::iota(out, out + count, Index{0});
  // The draws of one long "row": its block number counts to 2^32, so the node field counts on.
  constexpr int64_t kDrawsPerNode = int64_t{1} << 32;
  for (int64_t begin = 0; begin < count; begin += kDrawsPerNode) {
    DrawStream stream(NodeDraws{key, static_cast<uint64_t>(begin / kDrawsPerNode), 0}, true);
    for (int64_t i = begin; i < count && i < begin + kDrawsPerNode; ++i) {
      const int64_t j = i + static_cast<int64_t>(stream.below(static_cast<uint64_t>(count - i)));
      std::swap(out[i], out[j]);
    }
  }
}

template void permutation<int32_t>(uint64_t, int64_t, int32_t*);
template void permutation<int64_t>(uint64_t, int64_t, int64_t*);

}  // namespace khop::cpu
