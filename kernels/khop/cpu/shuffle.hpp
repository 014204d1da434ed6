// The order of an epoch.
#pragma once

#include <cstdint>

namespace khop::cpu {

// Writes a permutation of 0 .. count - 1 that depends on the key alone (Fisher-Yates).
template <class Index>
void permutation(uint64_t key, int64_t count, Index* out);

}  // namespace khop::cpu
