// An id column of an edge list, optionally seen through a map: id i stands for map[i].
#pragma once

#include <cstdint>

#include "khop/core/rng.hpp"

namespace khop {

template <class Id>
struct IdColumn {
  const Id* ids;
  const int64_t* map;  // null: the ids themselves
  int64_t num_ids;     // ids are in [0, num_ids)

  KHOP_HD int64_t operator[](int64_t e) const {
    return map == nullptr ? static_cast<int64_t>(ids[e]) : map[static_cast<int64_t>(ids[e])];
  }
  KHOP_HD bool is_valid(int64_t e) const {
    const auto id = static_cast<int64_t>(ids[e]);
    return 0 <= id && id < num_ids;
  }
};

}  // namespace khop
