// Arguments of batches of links of which a device makes seeds, checked.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/py_device.hpp"
#include "khop/core/sizes.hpp"
#include "khop/device/bounds.hpp"
#include "khop/device/sample_plan.hpp"

namespace khop::bindings {

// The candidates of one end of negatives: their number, sums of weights, order and times.
using PyTimedCandidates = std::tuple<int64_t, std::optional<In<int64_t>>,
                                     std::optional<In<int64_t>>, std::optional<In<int64_t>>>;

// What all batches of links of a sampler have in common, in the device's memory.
class PyDeviceLinkPlan {
 public:
  PyDeviceLinkPlan(SharedDevice device, std::pair<int32_t, int32_t> types,
                   const PyTimedCandidates& src_from, const PyTimedCandidates& dst_from, bool pairs,
                   int64_t amount, std::optional<int32_t> relation, bool rows_are_sources,
                   const std::vector<std::pair<int32_t, bool>>& excluded)
      : device_(std::move(device)) {
    if (amount < 1) throw nb::value_error("amount must be at least 1");
    plan_.pairs = pairs;
    plan_.amount = amount;
    plan_.relation = relation.value_or(-1);
    plan_.rows_are_sources = rows_are_sources;
    plan_.ends[0].type = types.first;
    plan_.ends[1].type = types.second;
    for (const auto& [of, by_source] : excluded) plan_.excluded.push_back({of, by_source});
    check(src_from);
    check(dst_from);
    try {
      plan_.ends[0].candidates = take(src_from);
      plan_.ends[1].candidates = take(dst_from);
    } catch (...) {
      release();
      throw;
    }
  }
  PyDeviceLinkPlan(const PyDeviceLinkPlan&) = delete;
  PyDeviceLinkPlan& operator=(const PyDeviceLinkPlan&) = delete;
  // Memory is given back in the order of the device's work.
  ~PyDeviceLinkPlan() { release(); }

  const device::LinkPlan& get() const { return plan_; }
  const SharedDevice& device() const { return device_; }

 private:
  using Column = std::optional<In<int64_t>>;

  static void check(const PyTimedCandidates& from) {
    const auto& [count, sums, order, times] = from;
    if (count < 0) throw nb::value_error("there cannot be a negative number of candidates");
    for (const Column* column : {&sums, &order, &times}) {
      if (column->has_value()) {
        check_length(static_cast<int64_t>((*column)->shape(0)), count, "a column of candidates");
      }
    }
    for (const Column* column : {&sums, &times}) {
      for (int64_t i = 1; column->has_value() && i < count; ++i) {
        if ((*column)->data()[i] < (*column)->data()[i - 1]) {
          throw nb::value_error("sums and times of candidates must ascend");
        }
      }
    }
    if (count > 0 && sums.has_value() && sums->data()[0] < 0) {
      throw nb::value_error("sums of candidates must not be negative");
    }
    for (int64_t i = 0; order.has_value() && i < count; ++i) {
      if (order->data()[i] < 0 || order->data()[i] >= count) {
        throw nb::value_error("the order of candidates names a node that does not exist");
      }
    }
  }

  device::TimedCandidates take(const PyTimedCandidates& from) {
    const auto& [count, sums, order, times] = from;
    const int64_t* const on_device[] = {put(sums), put(order), put(times)};
    return {{count, on_device[0], on_device[1]}, on_device[2]};
  }

  const int64_t* put(const Column& column) {
    if (!column.has_value()) return nullptr;
    const std::size_t size = bytes_of(static_cast<int64_t>(column->shape(0)), sizeof(int64_t));
    owned_.push_back((*device_)->allocate(size));
    (*device_)->upload(owned_.back(), column->data(), size);
    return static_cast<const int64_t*>(owned_.back());
  }

  void release() noexcept {
    for (void* memory : owned_) (*device_)->release(memory);
  }

  SharedDevice device_;
  device::LinkPlan plan_;
  std::vector<void*> owned_;
};

// Plan, sources, destinations, times, number of negatives, address of the positions of ends.
using PyLinks = std::tuple<std::shared_ptr<PyDeviceLinkPlan>, In<int64_t>, In<int64_t>,
                           std::optional<In<int64_t>>, int64_t, uintptr_t>;

// num_nodes: of each node type of the subgraph.
inline device::LinkBatch checked_links(const PyLinks& links, const SharedDevice& device,
                                       const std::vector<int64_t>& num_nodes,
                                       std::size_t num_relations) {
  const auto& [plan, src, dst, times, num_negatives, address] = links;
  if (plan->device() != device) throw nb::value_error("the links' plan is one of another device");
  const device::LinkPlan& common = plan->get();
  for (const auto& end : common.ends) {
    const int32_t type = checked(end.type, num_nodes.size(), "node type");
    check_length(end.candidates.nodes.num_nodes, num_nodes[static_cast<std::size_t>(type)],
                 "candidates");
  }
  for (const auto& exclusion : common.excluded) {
    checked(exclusion.relation, num_relations, "edge type");
  }
  if (common.relation >= 0) checked(common.relation, num_relations, "edge type");
  const auto count = static_cast<int64_t>(src.shape(0));
  check_length(static_cast<int64_t>(dst.shape(0)), count, "destinations");
  if (times.has_value()) check_length(static_cast<int64_t>(times->shape(0)), count, "times");
  check_draws(num_negatives);
  const bool is_part = common.pairs || num_negatives <= device::product(count, common.amount);
  if (num_negatives < 0 || (count == 0 && num_negatives > 0) || !is_part) {
    throw nb::value_error("there are negatives of other links");
  }
  if (count > 0 && address == 0) throw nb::value_error("positions of ends need an address");
  device::LinkBatch batch;
  batch.plan = common;
  batch.src = src.data();
  batch.dst = dst.data();
  batch.times = times.has_value() ? times->data() : nullptr;
  batch.num_links = count;
  batch.num_negatives = num_negatives;
  batch.index = reinterpret_cast<int64_t*>(address);
  return batch;
}

}  // namespace khop::bindings
