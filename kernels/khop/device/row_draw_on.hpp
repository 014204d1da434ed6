// Draws of rows for others, on a device made of a backend.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <vector>

#include "khop/device/batch_head.hpp"
#include "khop/device/batch_memory.hpp"
#include "khop/device/bounds.hpp"
#include "khop/device/errors.hpp"
#include "khop/device/row_draw.hpp"
#include "khop/device/sample_steps.hpp"

namespace khop::device {

// To the steps, a set of rows is the frontier of an edge type and a node type of its own.
template <class Backend>
class RowDrawOn final : public RowDraw {
 public:
  explicit RowDrawOn(Backend& backend) : backend_(backend), head_(backend), memory_(backend) {}
  ~RowDrawOn() override {
    if (head_.slot().is_under_way) backend_.wait_quietly();
  }

  std::vector<int64_t> draw(const std::vector<AskedRows>& asked, int64_t* counts) override {
    [[maybe_unused]] const auto on = backend_.on_device();
    edges_.reset();
    auto& slot = head_.next_slot(false);
    if (slot.is_under_way) backend_.synchronize();
    HeadSizes sizes;
    sizes.types = sizes.relations = static_cast<int64_t>(asked.size());
    sizes.hops = 1;
    head_.lay_out(sizes);
    write_head(asked);
    slot.is_under_way = true;
    BatchSteps<Backend> steps(backend_, head_, memory_, plan_, hops_, false, false, 0);
    steps.plan_first_rows();
    head_.upload();
    if (hops_[0].rows > 0) pick(steps, counts);
    head_.download();
    backend_.mark(slot.arrived);
    backend_.wait(slot.arrived);
    slot.is_under_way = false;
    check_error(*head_.error.host);
    std::vector<int64_t> totals;
    for (std::size_t k = 0; k < asked.size(); ++k) {
      totals.push_back(head_.records.host[k].num_edges);
    }
    num_edges_ = std::accumulate(totals.begin(), totals.end(), int64_t{0});
    return totals;
  }

  void write(int64_t* entries, bool with_edges) override {
    if (!edges_.has_value()) return;  // no rows
    [[maybe_unused]] const auto on = backend_.on_device();
    backend_.run(Count{num_edges_}, WriteEntries{*edges_, entries, with_edges});
  }

 private:
  void write_head(const std::vector<AskedRows>& asked) {
    HopBounds& bounds = hops_[0] = {};
    for (int64_t k = 0; k < static_cast<int64_t>(asked.size()); ++k) {
      const AskedRows& rows = asked[k];
      if (rows.options.fanout == 0) throw std::invalid_argument("a fan-out of 0 draws no edges");
      check_options(rows.options, rows.graph);
      SampleBuffer& buffer = head_.buffers.host[k] = {};
      buffer.nodes = const_cast<int64_t*>(rows.keys);
      buffer.times = rows.times;
      buffer.id_bits = rows.id_bits;
      buffer.disjoint = rows.disjoint;
      head_.states.host[k].frontier_size = rows.count;
      head_.relations.host[k] = {rows.graph.view(), {nullptr, nullptr}, k, k, k};
      HopStep& step = head_.steps.host[k] = step_of_rows(rows);
      step.options.last &= rows.graph.times != nullptr;
      bounds.rows += rows.count;
      if (step.mode == RowMode::kPicked) {
        bounds.picks += product(rows.count, step.options.fanout);
      }
      bounds.is_filtered |= step.mode == RowMode::kFiltered;
      bounds.words_per_thread = std::max(bounds.words_per_thread, words_of(step, rows.graph));
    }
  }

  // Rows of a graph without edges are looked up, too.
  static HopStep step_of_rows(const AskedRows& rows) {
    if (rows.graph.max_degree == 0) return {rows.options, RowMode::kWhole, 0};
    return step_of(rows.options, false, rows.graph.max_degree);
  }

  void pick(BatchSteps<Backend>& steps, int64_t* counts) {
    Room room;
    room.eager = hops_[0].rows;
    if (hops_[0].is_filtered) hops_[0].candidates = steps.count_candidates();
    memory_.reserve(hops_, room);
    edges_ = steps.pick(0);
    const int64_t* const offsets = edges_->rows.offsets;
    backend_.run(Count{hops_[0].rows}, WriteCounts{offsets, counts});
    backend_.run(Count{head_.sizes().relations}, WriteTotals{*edges_, head_.records.device});
  }

  Backend& backend_;
  BatchHead<Backend> head_;
  BatchMemory<Backend> memory_;
  SamplePlan plan_;  // no program draws
  std::vector<HopBounds> hops_{1};
  std::optional<HopEdges> edges_;  // of the last draw
  int64_t num_edges_ = 0;
};

}  // namespace khop::device
