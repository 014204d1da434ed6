// Sampling of a batch on a device made of a backend: its seeds, the memory that it needs, and the
// steps that draw it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "khop/core/rng.hpp"
#include "khop/device/batch_head.hpp"
#include "khop/device/bounds.hpp"
#include "khop/device/errors.hpp"
#include "khop/device/exclude.hpp"
#include "khop/device/recorded.hpp"
#include "khop/device/sample_plan.hpp"
#include "khop/device/sample_steps.hpp"
#include "khop/device/type_memory.hpp"

namespace khop::device {

template <class Backend>
class BatchOn {
 public:
  BatchOn(Backend& backend, const std::vector<int64_t>& num_nodes, std::vector<Relation> relations,
          bool with_edges, bool disjoint, int64_t room)
      : backend_(backend),
        relations_(std::move(relations)),
        order_(relations_, num_nodes.size()),
        with_edges_(with_edges),
        disjoint_(disjoint),
        head_(backend),
        memory_(backend),
        downloaded_(backend) {
    for (std::size_t r = 0; r < relations_.size(); ++r) excluded_.emplace_back(backend);
    for (const int64_t count : num_nodes) types_.emplace_back(backend, count, disjoint);
    learned_.positions.assign(num_nodes.size(), 0);
    learned_.eager = room;
  }
  BatchOn(const BatchOn&) = delete;
  BatchOn& operator=(const BatchOn&) = delete;
  // The device may still be copying from the host's side of the head.
  ~BatchOn() {
    if (is_under_way_) backend_.wait_quietly();
  }

  void begin() {
    for (auto& type : types_) type.seeds.clear();
    for (auto& excluded : excluded_) excluded.clear();
    tree_times_.clear();
    num_trees_ = 0;
    plan_.reset();
    is_drawn_ = false;
    has_failed_ = false;
    is_timed_ = false;
  }

  void add_seeds(int32_t node_type, const int64_t* ids, const int64_t* times, int64_t count) {
    TypeMemory<Backend>& type = types_[index(node_type)];
    type.check_ids(ids, count);
    if (!disjoint_ && times != nullptr) {
      throw std::invalid_argument("seeds with times need a disjoint batch");
    }
    if (disjoint_) {
      if (num_trees_ > 0 && count > 0 && (times != nullptr) != is_timed_) {
        throw std::invalid_argument("either all seeds of a batch have times, or none");
      }
      check_trees(num_trees_ + count);
    }
    if (count > 0) is_timed_ = times != nullptr;
    if (times != nullptr) tree_times_.insert(tree_times_.end(), times, times + count);
    for (int64_t i = 0; i < count; ++i) {
      type.seeds.push_back(type.key(disjoint_ ? num_trees_ + i : 0, ids[i]));
    }
    if (disjoint_) num_trees_ += count;
  }

  void exclude(int32_t relation, const int64_t* rows, const int64_t* neighbors, int64_t count) {
    excluded_[index(relation)].add(rows, neighbors, count);
  }

  // Draws; waits for nothing.
  void sample(SamplePlan plan) {
    check_plan(plan);
    plan_ = std::move(plan);
    draw();
  }

  // Whether the batch has been waited for.
  bool is_drawn() const { return is_drawn_; }

  // Waits for what was launched. Returns whether the batch is drawn with it: `finish` then launches
  // nothing. Another thread may launch other batches meanwhile.
  bool wait() {
    if (is_drawn_) return true;
    if (!is_under_way_ || has_failed_) return false;
    wait_for_download();
    return head_.error.host->code == DeviceError::kNone && head_.needs.host->exceeded == 0;
  }

  // What it was written to when it was drawn, if it fits. Null: nothing.
  const BatchBlock* block() const { return head_.sizes().writes ? &plan_->block : nullptr; }

  // Waits for the batch, and draws it again where it found too little room.
  void finish() {
    if (!plan_.has_value()) sample(plan_without_hops(relations_.size()));
    for (;;) {
      if (has_failed_) {
        throw std::runtime_error(
            "the batch could not be drawn, as an earlier error said: begin another one");
      }
      if (is_under_way_) wait_for_download();
      check_error(*head_.error.host);
      if (head_.needs.host->exceeded == 0) break;
      draw_with_more();
    }
    is_drawn_ = true;
  }

  // What was drawn; after `finish`.
  BatchShape shape() {
    std::vector<int64_t> seeds;
    for (const auto& type : types_) seeds.push_back(static_cast<int64_t>(type.seeds.size()));
    return head_.shape(seeds);
  }

  // For what is made of a drawn batch.
  const std::vector<Relation>& relations() const { return relations_; }
  bool with_edges() const { return with_edges_; }
  bool disjoint() const { return disjoint_; }
  std::size_t num_hops() const { return plan_->num_hops(); }
  const HopRecord& record(std::size_t hop, std::size_t relation) const {
    return head_.records.host[hop * relations_.size() + relation];
  }
  const TypeMemory<Backend>& type(int32_t t) const { return types_[index(t)]; }
  SampleBuffer buffer(int32_t t) const { return types_[index(t)].buffer(); }
  const TypeState* state(int32_t t) const { return head_.states.device + t; }
  DeviceError* device_error() const { return head_.error.device; }
  ExcludedList excluded(std::size_t relation) const { return excluded_[relation].list(); }

  // All nodes of the type whose neighbours an edge type leads to.
  FrontierView nodes_of(std::size_t relation) const {
    const TypeMemory<Backend>& type = types_[index(relations_[relation].destination)];
    return {type.buffer().nodes, head_.zero.device, is_timed_ ? head_.times.device : nullptr,
            type.id_bits(), disjoint_};
  }

 private:
  static std::size_t index(int32_t i) { return static_cast<std::size_t>(i); }

  void check_trees(int64_t num_trees) const {
    if (num_trees > std::numeric_limits<int32_t>::max()) {
      throw std::length_error("a disjoint batch may hold at most 2^31 - 1 seeds");
    }
    for (const auto& type : types_) {
      if (num_trees <= type.max_trees()) continue;
      throw std::length_error("a disjoint batch of " + std::to_string(num_trees) +
                              " seeds is too large for this graph; use smaller batches");
    }
  }

  // Makes room, uploads what to draw, and launches it.
  void draw() {
    if (is_under_way_) backend_.synchronize();  // what was uploaded is about to be overwritten
    is_drawn_ = false;
    has_failed_ = true;  // until all of it is launched
    const std::vector<int64_t> most = most_seeds();
    find_bounds(most);
    // Lost where only a part of the memory has moved when there is no more.
    std::optional<typename Backend::Recording> recording = std::exchange(recording_, std::nullopt);
    const bool moved = make_room(most);
    if (!moved) recording_ = std::move(recording);
    seeds_most_ = most;
    write_head();
    is_under_way_ = true;
    if (has_exclusions()) {
      recording_.reset();
      head_.upload();
      find_excluded();
      steps().launch();
      head_.download();
    } else {
      launch_steps(moved);
    }
    backend_.mark(downloaded_);
    has_failed_ = false;
  }

  // The batch again, with the room that it has turned out to need. Later batches need not ask for
  // more than the memory has.
  void draw_with_more() {
    const Room known = learned_;
    if (!learned_.learn(head_.states.host, *head_.needs.host)) {
      throw std::runtime_error(
          "a batch has more edges than its graph had when the device got it: a graph must not "
          "change while it is read in place. If it did not, please report this");
    }
    try {
      draw();
    } catch (...) {
      learned_ = known;
      throw;
    }
  }

  bool has_exclusions() const {
    return std::any_of(excluded_.begin(), excluded_.end(), [](auto& e) { return !e.empty(); });
  }

  // Seeds of each type that there is to be room for: recorded batches have no more, and may have
  // fewer.
  std::vector<int64_t> most_seeds() const {
    std::vector<int64_t> most;
    for (std::size_t t = 0; t < types_.size(); ++t) {
      const auto count = static_cast<int64_t>(types_[t].seeds.size());
      const bool is_more = plan_->as_graph && t < seeds_most_.size() && seeds_most_[t] > count;
      most.push_back(is_more ? seeds_most_[t] : count);
    }
    return most;
  }

  void find_bounds(const std::vector<int64_t>& most_seeds) {
    std::vector<int64_t> num_ids;
    for (const auto& type : types_) num_ids.push_back(type.num_ids());
    std::vector<bool> has_excluded;
    for (const auto& excluded : excluded_) has_excluded.push_back(!excluded.empty());
    bounds_.emplace(*plan_, relations_, most_seeds, num_ids, disjoint_, has_excluded, learned_);
  }

  // Returns whether any memory that recordings use has moved.
  bool make_room(const std::vector<int64_t>& most_seeds) {
    HeadSizes sizes;
    sizes.types = static_cast<int64_t>(types_.size());
    sizes.relations = static_cast<int64_t>(relations_.size());
    sizes.hops = static_cast<int64_t>(plan_->num_hops());
    for (const int64_t count : most_seeds) sizes.seeds += count;
    sizes.times = is_timed_ ? sizes.seeds : 0;
    sizes.writes = plan_->block.words != nullptr && plan_->num_hops() > 0;
    const int64_t num_trees = disjoint_ ? sizes.seeds : 0;
    for (std::size_t r = 0; r < relations_.size(); ++r) {
      if (excluded_[r].empty()) continue;
      const GraphArrays& graph = plan_->graphs[r];
      sizes.others += static_cast<int64_t>(excluded_[r].lay_out(graph.view()).size());
      excluded_[r].reserve(graph.max_degree, learned_);
    }
    bool moved = head_.lay_out(sizes);
    for (std::size_t t = 0; t < types_.size(); ++t) {
      moved |= types_[t].prepare(bounds_->room.positions[t], num_trees, with_edges_);
    }
    return memory_.reserve(bounds_->hops, learned_) || moved;
  }

  void write_head() {
    write_seeds();
    for (std::size_t t = 0; t < types_.size(); ++t) {
      SampleBuffer& buffer = head_.buffers.host[t] = types_[t].buffer();
      buffer.first_relation = order_.first[t];
      buffer.end_relation = order_.first[t + 1];
    }
    for (std::size_t k = 0; k < order_.relations.size(); ++k) {
      const std::size_t r = order_.relations[k];
      const GraphArrays& graph = plan_->graphs[r];
      head_.relations.host[k] = {graph.view(), excluded_[r].list(), relations_[r].source,
                                 relations_[r].destination, static_cast<int64_t>(r)};
      for (std::size_t h = 0; h < plan_->num_hops(); ++h) {
        HopStep& step = head_.steps.host[h * order_.relations.size() + k] = bounds_->steps[h][r];
        step.options = step.options.at({plan_->run_key, plan_->batch, static_cast<uint32_t>(h),
                                        static_cast<uint32_t>(r),
                                        static_cast<uint32_t>(relations_[r].source)});
        step.options.last &= graph.times != nullptr;
      }
    }
    if (head_.sizes().writes) write_target();
    steps().plan_first_rows();
  }

  void write_target() {
    const BatchBlock& block = plan_->block;
    *head_.target.host = {block.words, block.capacity, block.backward ? 1 : 0, 0};
    std::copy(block.edges.begin(), block.edges.end(), head_.edge_targets.host);
  }

  void wait_for_download() {
    backend_.wait(downloaded_);
    is_under_way_ = false;
  }

  // Nodes and edges that a batch has at most.
  int64_t most_items() const {
    int64_t most = 0;
    for (std::size_t t = 0; t < types_.size() && head_.sizes().writes; ++t) {
      const int64_t positions = bounds_->room.positions[t];
      most += positions + (disjoint_ ? positions : std::min(positions, types_[t].num_ids()));
    }
    return most;
  }

  void write_seeds() {
    int64_t at = 0;
    for (std::size_t t = 0; t < types_.size(); ++t) {
      const std::vector<int64_t>& seeds = types_[t].seeds;
      const auto count = static_cast<int64_t>(seeds.size());
      head_.states.host[t] = {count, count, 0, count, count, types_[t].take_stamp(), 0};
      std::copy(seeds.begin(), seeds.end(), head_.seeds.host + at);
      head_.seed_starts.host[t + 1] = at += count;
    }
    std::copy(tree_times_.begin(), tree_times_.end(), head_.times.host);
    int64_t* words = head_.others.host;
    for (const auto& excluded : excluded_) {
      if (!excluded.empty()) {
        words = std::copy(excluded.words().begin(), excluded.words().end(), words);
      }
    }
  }

  void find_excluded() {
    const int64_t* words = head_.others.device;
    for (std::size_t r = 0; r < relations_.size(); ++r) {
      if (excluded_[r].empty()) continue;
      excluded_[r].find(backend_, plan_->graphs[r].view(), words, head_.error.device,
                        head_.needs.device);
      words += excluded_[r].words().size();
    }
  }

  // Batches of the same bounds and the same memory launch what the second of them has recorded.
  void launch_steps(bool afresh) {
    const auto upload_and_launch = [&] {
      head_.upload();
      steps().launch();
      head_.download();
    };
    if (!plan_->as_graph || afresh) {
      recording_.reset();
      upload_and_launch();
      return;
    }
    const Recorded now{head_.sizes(), bounds_->hops, methods_of(*plan_),
                       is_timed_,     num_wide(),    most_items()};
    if (!recording_.has_value() || !(recorded_ == now)) {
      recording_ = backend_.record(upload_and_launch);
      recorded_ = now;
    }
    backend_.launch(*recording_);
  }

  int64_t num_wide() const {
    return std::count_if(types_.begin(), types_.end(), [](auto& t) { return !t.is_narrow(); });
  }

  BatchSteps<Backend> steps() {
    return {backend_, head_, memory_, bounds_->hops, is_timed_, num_wide() > 0, most_items()};
  }

  Backend& backend_;
  std::vector<Relation> relations_;
  RelationOrder order_;
  bool with_edges_;
  bool disjoint_;
  std::vector<TypeMemory<Backend>> types_;
  std::vector<ExcludedEdges<Backend>> excluded_;

  std::optional<SamplePlan> plan_;
  std::vector<int64_t> tree_times_;
  int64_t num_trees_ = 0;
  bool is_timed_ = false;
  bool is_drawn_ = false;
  bool is_under_way_ = false;  // launched, at least in part, and not been waited for
  bool has_failed_ = false;    // it was not launched, or in part only

  Room learned_;
  std::vector<int64_t> seeds_most_;
  std::optional<BoundsOfBatch> bounds_;

  BatchHead<Backend> head_;
  BatchMemory<Backend> memory_;
  typename Backend::Mark downloaded_;  // when the host has what it asks for
  std::optional<typename Backend::Recording> recording_;
  Recorded recorded_;
};

}  // namespace khop::device
