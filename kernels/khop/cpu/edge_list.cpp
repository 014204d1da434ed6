#include "khop/cpu/edge_list.hpp"

#include <algorithm>

namespace khop::cpu {

void EdgeList::clear() {
  in_hop_order = true;
  destinations.clear();
  hops.clear();
  counts.clear();
  sources.clear();
  edges.clear();
}

void EdgeList::write_endpoints(int64_t* row, int64_t* col) const {
  for (int64_t j = 0; j < sources.size(); ++j) row[j] = sources[j];
  if (!in_hop_order) {
    for (int64_t j = 0; j < destinations.size(); ++j) col[j] = destinations[j];
    return;
  }
  // Most rows are short: a fixed number of places, of which the next row overwrites some, takes no
  // branch on their length.
  constexpr int32_t kShort = 16;
  const int32_t* count = counts.data();
  const int64_t* const end = col + sources.size();
  for (const Hop& hop : hops) {
    for (int64_t i = 0; i < hop.num_destinations; ++i, ++count) {
      const bool fits = *count <= kShort && end - col >= kShort;
      std::fill_n(col, fits ? kShort : *count, hop.first_destination + i);
      col += *count;
    }
  }
}

}  // namespace khop::cpu
