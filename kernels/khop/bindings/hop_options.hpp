// Options of hops as Python hands them over.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/bindings/arrays.hpp"
#include "khop/core/hop_options.hpp"

namespace khop::bindings {

// An edge type each, then a hop each.
using HopTable = std::vector<std::vector<HopOptions>>;

// Raises ValueError unless there is a row for each edge type, all rows have as many hops, and a
// hop's method is one for all of them.
inline void check_hops(const HopTable& hops, std::size_t num_relations) {
  if (hops.size() < num_relations) {
    throw nb::value_error("there must be a graph and the options of all hops for each edge type");
  }
  for (const auto& of_relation : hops) {
    if (of_relation.size() != hops[0].size()) {
      throw nb::value_error("edge types differ in the number of hops");
    }
    for (std::size_t h = 0; h < of_relation.size(); ++h) {
      if (of_relation[h].method != hops[0][h].method) {
        throw nb::value_error("edge types differ in the sampling method of a hop");
      }
    }
  }
}

}  // namespace khop::bindings
