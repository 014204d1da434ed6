// Interface of a batch's subgraph that a device draws.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "khop/core/subgraph.hpp"
#include "khop/device/graph.hpp"
#include "khop/device/sample_plan.hpp"
#include "khop/device/steps/merge.hpp"

namespace khop::device {

// One batch after the other is drawn into the same object, as into Subgraph:
//   begin(); add_seeds(...) or add_links(...); [exclude(...);] sample(...); [induce(...) or
//   add_reverses(...)]
// `sample` waits for nothing. What a batch has come to is known after the first question for it;
// that waits, once. A batch that finds too little room for what it draws is drawn again then, with
// more: as draws are a function of their keys alone, it is the same batch.
//
// Graphs must stay where they are until then.
class DeviceSubgraph {
 public:
  DeviceSubgraph() = default;
  DeviceSubgraph(const DeviceSubgraph&) = delete;
  DeviceSubgraph& operator=(const DeviceSubgraph&) = delete;
  virtual ~DeviceSubgraph() = default;

  virtual void begin() = 0;
  // Arrays of the host.
  virtual void add_seeds(int32_t node_type, const int64_t* ids, const int64_t* times,
                         int64_t count) = 0;
  // Seeds that the device makes of links.
  virtual void add_links(const LinkBatch& links) = 0;
  virtual void exclude(int32_t relation, const int64_t* rows, const int64_t* neighbors,
                       int64_t count) = 0;
  virtual void sample(SamplePlan plan) = 0;
  virtual void induce(const std::vector<GraphArrays>& graphs) = 0;
  virtual void add_reverses(const std::vector<Reversal>& reversals, bool keep_edges) = 0;

  // Waits for what `sample` launched. Returns whether the batch is complete with it, and written to
  // the block of its plan: only then does it take no more launches. Other threads may use the
  // device meanwhile.
  virtual bool settle() = 0;
  // Waits. Returns whether strict negatives of links were not found by draws alone: the batch is
  // not drawn then, and the host must choose among all that are valid.
  virtual bool lacks_negatives() = 0;
  // For a padded batch that is used before it is known whether it fits: a later `sample` or
  // `check_all` throws std::invalid_argument if it did not. Returns false where the batch may have
  // to be drawn again; `settle` is needed then.
  virtual bool leave_unchecked() = 0;
  virtual void check_all() = 0;
  // `sample` in three parts, for whoever records `launch` with other work, once: the head is
  // uploaded, kernels are launched, and what the host asks for is downloaded.
  virtual void stage(SamplePlan plan) = 0;
  virtual void launch() = 0;
  virtual void collect() = 0;
  // With a plan that leaves the draws to others, `sample` only places the seeds. Each `merge` takes
  // the edges that others have drawn for the frontiers of a hop, which `write_frontier` writes.
  // Arrays of replies stay where they are until `begin`. All of these wait for the hop before.
  virtual void merge(const HopReplies& replies) = 0;
  virtual int64_t frontier_size(int32_t node_type) = 0;
  virtual void write_frontier(int32_t node_type, int64_t* keys, int64_t* times) = 0;
  // Whether `shape` answers at once.
  virtual bool is_known() const = 0;
  virtual const BatchShape& shape() = 0;
  // Waits for nothing more. Throws std::invalid_argument for edges that were not recorded.
  virtual void write(const BatchOut& out) = 0;
};

}  // namespace khop::device
