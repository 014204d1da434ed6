// What a recording of a batch was made for.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/device/batch_head.hpp"
#include "khop/device/bounds.hpp"
#include "khop/device/sample_plan.hpp"

namespace khop::device {

// What the launches of a batch depend on, beside where its memory is. All else is in the head.
struct Recorded {
  HeadSizes sizes;
  std::vector<HopBounds> hops;
  std::vector<HopMethod> methods;
  bool is_timed = false;
  int64_t num_wide = 0;
  int64_t most_items = 0;  // that are written

  bool operator==(const Recorded& other) const {
    return sizes == other.sizes && hops == other.hops && methods == other.methods &&
           is_timed == other.is_timed && num_wide == other.num_wide &&
           most_items == other.most_items;
  }
};

// Of each hop over each edge type: there are kernels for each method.
inline std::vector<HopMethod> methods_of(const SamplePlan& plan) {
  std::vector<HopMethod> methods;
  for (const auto& hops : plan.hops) {
    for (const HopOptions& options : hops) methods.push_back(options.method);
  }
  return methods;
}

}  // namespace khop::device
