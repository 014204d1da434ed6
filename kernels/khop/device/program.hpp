// Programs: sampling methods that draw for all rows of a hop together, or other nodes than a row's
// neighbours. In Python they are src/khop/sampler/methods/{pinsage,ladies,fastgcn}.py.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/device/steps/batch_view.hpp"

namespace khop::device {

struct Program {
  enum Method : int32_t {
    kNone,
    kVisits,        // PinSAGE: the nodes that walks visit most
    kPoisson,       // PLADIES: neighbours by chances that add up to a layer's number of nodes
    kProportional,  // LADIES: neighbours with replacement
    kWholeGraph,    // FastGCN: all nodes with replacement
  };
  Method method = kNone;
  int64_t num_walks = 0;  // of kVisits: from each row, so many steps at most
  int64_t length = 0;
  uint64_t stop = 0;            // chance that a walk ends before a step but the first, of 2^32
  std::vector<int64_t> counts;  // of the others: nodes of each layer
  bool skips = false;           // rows are always drawn
  bool scales_rows = false;     // a row's values add up to the number of its edges
  const int64_t* column_sums = nullptr;  // of kWholeGraph: running sums over all nodes
  int64_t num_sums = 0;

  bool is_there() const { return method != kNone; }

  HopStep step_of(HopStep step) const {
    if (!is_there() || step.is_empty()) return step;
    step.mode = method == kVisits ? RowMode::kListed : RowMode::kFiltered;
    return step;
  }
};

}  // namespace khop::device
