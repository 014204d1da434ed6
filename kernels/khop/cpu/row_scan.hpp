// Search for a neighbour in a row, whose neighbours are in the order of edges.
#pragma once

#include <algorithm>
#include <cstdint>

namespace khop::cpu {

// Whether columns[0 .. degree) hold a neighbour.
template <class Col>
bool row_holds(const Col* columns, int64_t degree, Col wanted) {
  // Entries compared before the next look at the result: a branch an entry would forbid vectors.
  constexpr int64_t kBlock = 64;
  for (int64_t begin = 0; begin < degree; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, degree);
    unsigned found = 0;
    for (int64_t j = begin; j < end; ++j) found |= static_cast<unsigned>(columns[j] == wanted);
    if (found != 0) return true;
  }
  return false;
}

}  // namespace khop::cpu
