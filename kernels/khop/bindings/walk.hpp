// Arguments of random walks, on the CPU and on devices.
#pragma once

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "khop/bindings/arrays.hpp"
#include "khop/bindings/checks.hpp"
#include "khop/core/walk.hpp"

namespace khop::bindings {

using Chances = std::tuple<uint64_t, uint64_t, uint64_t>;
using Matrix = nb::ndarray<int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline WalkBias checked_bias(const Chances& chances) {
  const auto [back, near, far] = chances;
  if (std::min({back, near, far}) == 0 || std::max({back, near, far}) > uint64_t{1} << 32) {
    throw nb::value_error("chances of a bias are from 1 to 2^32");
  }
  return {back, near, far};
}

// The edge type of each step.
inline std::vector<int32_t> checked_relations(const std::vector<int64_t>& relations,
                                              std::size_t num_graphs, std::size_t num_stops,
                                              const WalkBias& bias) {
  std::vector<int32_t> steps;
  for (const int64_t relation : relations) {
    steps.push_back(checked(relation, num_graphs, "edge type"));
  }
  check_length(static_cast<int64_t>(num_stops), static_cast<int64_t>(steps.size()), "stops");
  const auto other = [&](int32_t relation) { return relation != steps.front(); };
  if (bias.is_biased() && std::any_of(steps.begin(), steps.end(), other)) {
    throw nb::value_error("biased walks are over one edge type");
  }
  return steps;
}

inline void check_shape(const Matrix& out, std::size_t rows, std::size_t columns,
                        const char* name) {
  if (out.shape(0) == rows && out.shape(1) == columns) return;
  throw nb::value_error((std::string(name) + " must have shape [" + std::to_string(rows) + ", " +
                         std::to_string(columns) + "]")
                            .c_str());
}

// Checks where `count` walks of `length` steps are written; returns where their edges are, or null.
inline int64_t* checked_outputs(std::size_t count, std::size_t length, const Matrix& nodes,
                                const std::optional<Matrix>& edges) {
  check_shape(nodes, count, length + 1, "nodes");
  if (!edges.has_value()) return nullptr;
  check_shape(*edges, count, length, "edges");
  return edges->data();
}

}  // namespace khop::bindings
