// The part that has an id.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace khop::cpu {

// The last part whose first id is not above `id`, or part 0. Parts without ids are passed over. Few
// parts are counted without a branch, which random ids would mispredict.
inline std::size_t part_of(int64_t id, const int64_t* firsts, std::size_t num_parts) {
  constexpr std::size_t kFew = 16;
  if (num_parts > kFew) {
    const int64_t* const above = std::upper_bound(firsts + 1, firsts + num_parts, id);
    return static_cast<std::size_t>(above - firsts - 1);
  }
  std::size_t part = 0;
  for (std::size_t p = 1; p < num_parts; ++p) part += id >= firsts[p];
  return part;
}

}  // namespace khop::cpu
