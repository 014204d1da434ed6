// Links of a batch: what is uploaded of them, and the launches that make seeds of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "khop/core/sizes.hpp"
#include "khop/device/graph.hpp"
#include "khop/device/operations_on.hpp"
#include "khop/device/sample_plan.hpp"
#include "khop/device/steps/links.hpp"
#include "khop/device/steps/memory.hpp"
#include "khop/device/steps/negatives.hpp"
#include "khop/device/steps/scan.hpp"

namespace khop::device {

template <class Backend>
class LinkSeeds {
 public:
  explicit LinkSeeds(Backend& backend)
      : backend_(backend),
        strict_(backend),
        negatives_(backend),
        limits_(backend),
        keys_(backend),
        ranks_(backend) {}

  void clear() { view_.num_links = 0; }
  bool empty() const { return view_.num_links == 0; }
  bool is_strict() const { return !empty() && plan_.relation >= 0 && view_.num_negatives > 0; }
  bool is_timed() const { return !empty() && has_times_; }

  void take(const LinkBatch& batch, bool disjoint) {
    plan_ = batch.plan;
    has_times_ = batch.times != nullptr;
    words_.assign(kFirstBad, -1);
    for (const int64_t* column : {batch.src, batch.dst, batch.times}) {
      if (column != nullptr) words_.insert(words_.end(), column, column + batch.num_links);
    }
    view_.num_links = batch.num_links;
    view_.num_negatives = batch.num_negatives;
    view_.amount = plan_.amount;
    view_.pairs = plan_.pairs ? 1 : 0;
    view_.disjoint = disjoint ? 1 : 0;
    view_.index = batch.index;
  }

  int64_t num_ends() const { return empty() ? 0 : view_.num_ends(); }
  // Seeds of a type: so many, or in a batch that is not disjoint, at most.
  int64_t most_seeds(std::size_t type) const {
    int64_t most = 0;
    if (empty()) return most;
    for (int side = 0; side < 2; ++side) {
      if (static_cast<std::size_t>(plan_.ends[side].type) == type) most += ends_of(side);
    }
    return most;
  }
  const std::vector<int64_t>& words() const { return words_; }
  // Sources and destinations of links, where the words lie on the device.
  std::array<const int64_t*, 2> columns(const int64_t* words) const {
    return {words + kFirstBad, words + kFirstBad + view_.num_links};
  }
  std::array<int64_t, 2> num_nodes() const {
    return {plan_.ends[0].candidates.nodes.num_nodes, plan_.ends[1].candidates.nodes.num_nodes};
  }

  // Draws negatives, and writes seeds and positions of ends. `words`: on the device.
  template <class View>
  void launch(const SamplePlan& plan, int64_t* words, const View& head, const BatchView& batch,
              const PlanRows& rows) {
    point_to(words);
    for (int side = 0; side < 2; ++side) {
      view_.ends[side].key = negative_key(plan.run_key, plan.batch, 0, static_cast<uint32_t>(side));
    }
    StrictOutcome strict{};
    if (is_strict()) strict = draw_strict(plan, reinterpret_cast<uint64_t*>(words));
    const Count ends{view_.num_ends()};
    if (view_.disjoint != 0) {
      backend_.run(ends, PlaceTrees{view_, batch, strict, head.seed_starts.device,
                                    head.seeds.device, head.times.device});
      return;
    }
    const int32_t types[] = {plan_.ends[0].type, plan_.ends[1].type};
    const bool is_one_type = types[0] == types[1];
    const int64_t num_nodes = std::max(plan_.ends[0].candidates.nodes.num_nodes,
                                       plan_.ends[1].candidates.nodes.num_nodes);
    const int id_bits = bits_for(num_nodes);
    const int64_t num_lower = is_one_type ? ends.most : ends_of(types[0] < types[1] ? 0 : 1);
    keys_.reserve(ends.most);
    ranks_.reserve(ends.most + 1);
    const SortPairs pairs = keys_.pairs();
    const int64_t higher = is_one_type ? -1 : std::max(types[0], types[1]);
    backend_.run(ends, KeyEnds{view_, higher, id_bits, pairs.keys, pairs.values});
    backend_.sort(ends.most, pairs, id_bits + (is_one_type ? 0 : 1));
    sum(backend_, ends, FirstOfKey{pairs.keys}, ranks_.data());
    backend_.run(ends,
                 PlaceLinks{view_, batch, strict, rows, pairs.keys, pairs.values, ranks_.data(),
                            num_lower, id_bits, head.seeds.device, head.seed_starts.device});
  }

  // Strict negatives that no round has found are drawn in more of them, as far as there are.
  // Returns whether there are.
  bool draw_more_rounds() {
    if (num_rounds_ >= kMostRounds) return false;
    num_rounds_ = std::min(2 * num_rounds_, kMostRounds);
    return true;
  }

 private:
  // Of sampler/drawing/negative.py.
  static constexpr int kMostRounds = 32;
  static constexpr std::size_t kFirstBad = 3;

  int64_t ends_of(int side) const {
    return side == 0 ? view_.num_sources() : view_.num_links + view_.num_negatives;
  }

  void point_to(const int64_t* words) {
    const auto nodes = columns(words);
    for (std::size_t side = 0; side < 2; ++side) {
      const LinkPlan::End& end = plan_.ends[side];
      view_.ends[side] = {end.type, end.candidates, nodes[side], nullptr, 0};
    }
    view_.times = has_times_ ? nodes[1] + view_.num_links : nullptr;
  }

  StrictOutcome draw_strict(const SamplePlan& plan, uint64_t* first_bad) {
    const int64_t count = view_.num_negatives;
    negatives_.reserve(2 * count);
    limits_.reserve(2 * count);
    NegativeEnd ends[2];
    GiveNegatives give{view_, {nullptr, nullptr}, view_.pairs != 0 ? nullptr : negatives_.data()};
    for (int side = 0; side < 2; ++side) {
      const TimedCandidates& from = plan_.ends[side].candidates;
      if (has_times_ && from.times != nullptr) give.limits[side] = limits_.data() + side * count;
      int64_t* const nodes = negatives_.data() + side * count;
      ends[side] = {from.nodes,
                    {from.nodes.num_nodes, give.limits[side]},
                    nodes,
                    side == 1 || view_.pairs != 0};
      view_.ends[side].drawn = nodes;
    }
    if (give.sources != nullptr || has_times_) backend_.run(Count{count}, give);
    const GraphArrays& graph = plan.graphs[static_cast<std::size_t>(plan_.relation)];
    const NegativeSpec spec{plan.run_key,          plan.batch, count, num_rounds_, ends[0], ends[1],
                            plan_.rows_are_sources};
    graph.visit([&](const auto& rows) {
      strict_.launch(rows, spec, operations::longest_row(graph), first_bad);
    });
    return {strict_.num_left(), first_bad, ends[plan_.rows_are_sources ? 0 : 1].nodes};
  }

  Backend& backend_;
  LinkPlan plan_;
  LinkView view_{};
  bool has_times_ = false;
  std::vector<int64_t> words_;  // three of ones, then sources, destinations and times of links
  int num_rounds_ = 3;

  StrictNegatives<Backend> strict_;
  DeviceArray<Backend, int64_t> negatives_;  // sources, then destinations
  DeviceArray<Backend, int64_t> limits_;
  SortMemory<Backend> keys_;
  DeviceArray<Backend, int64_t> ranks_;
};

}  // namespace khop::device
