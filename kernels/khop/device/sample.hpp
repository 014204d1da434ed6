// Sampling of a batch on a device made of a backend: the memory that it needs, and launches of the
// steps that draw it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "khop/device/batch_head.hpp"
#include "khop/device/batch_inputs.hpp"
#include "khop/device/bounds.hpp"
#include "khop/device/errors.hpp"
#include "khop/device/head_tables.hpp"
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
        num_ids_(num_nodes),
        with_edges_(with_edges),
        disjoint_(disjoint),
        inputs_(backend, types_, relations_.size(), disjoint),
        head_(backend),
        memory_(backend) {
    for (const int64_t count : num_nodes) types_.emplace_back(backend, count, disjoint);
    learned_.positions.assign(num_nodes.size(), 0);
    learned_.eager = room;
  }
  BatchOn(const BatchOn&) = delete;
  BatchOn& operator=(const BatchOn&) = delete;
  // The device may still be copying from the host's side of the head.
  ~BatchOn() {
    if (head_.is_under_way()) backend_.wait_quietly();
  }

  void begin() {
    inputs_.clear();
    replies_.clear();
    plan_.reset();
    is_drawn_ = false;
    has_failed_ = false;
  }

  BatchInputs<Backend>& inputs() { return inputs_; }

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
    if (!head_.slot().is_under_way || has_failed_) return false;
    head_.wait_for(head_.slot());
    return head_.error.host->code == DeviceError::kNone && head_.needs.host->exceeded == 0;
  }

  // For a padded batch that is used before it is known whether it fits: a later call says if it
  // did not. Returns false where it may have to be drawn again: `finish` must be called then.
  bool leave_unchecked() {
    typename BatchHead<Backend>::Slot& slot = head_.slot();
    if (has_failed_ || !slot.is_under_way || !head_.sizes().pads || !bounds_->is_certain ||
        inputs_.is_uncertain()) {
      return false;
    }
    return slot.is_unchecked = true;
  }
  // Waits for the batches that were left unchecked.
  void check_all() { head_.check_all(); }

  // Writes what the next batch needs, and uploads it, for `launch`: by whom kernels are recorded
  // with others' work. Throws if they are not those that `launch` has launched.
  void stage(SamplePlan plan) {
    check_plan(plan);
    plan_ = std::move(plan);
    const bool moved = prepare();
    if (inputs_.has_exclusions() || inputs_.has_links() || !head_.sizes().pads) {
      throw std::invalid_argument(
          "only padded batches of nodes without exclusions are recorded with others");
    }
    Recorded now = as_recorded();
    if (is_staged_ && (moved || !(recorded_ == now))) {
      throw std::runtime_error(
          "a batch needs other kernels or memory than those that were recorded: record them anew");
    }
    recorded_ = std::move(now);
    is_staged_ = true;
    head_.upload();
  }
  void launch() { steps().launch(); }
  // Downloads what `leave_unchecked` or `finish` ask for.
  void collect() {
    head_.download();
    mark();
  }

  // Takes the edges of a hop's rows, which others have drawn, of a batch that leaves the draws to
  // them. They stay where they are until the batch is no more: it may be merged again, with more
  // room. Waits for nothing.
  void merge(const HopReplies& replies) {
    finish();
    const std::size_t hop = replies_.size();
    if (!plan_->is_merged || hop == plan_->num_hops()) {
      throw std::invalid_argument("the batch has no further hop that others draw");
    }
    if (replies.num_rows != rows_of(hop)) {
      throw std::invalid_argument("a hop has " + std::to_string(rows_of(hop)) +
                                  " rows, but replies are of " + std::to_string(replies.num_rows));
    }
    is_drawn_ = false;
    has_failed_ = true;
    head_.slot().is_under_way = true;
    head_.slot().is_marked = false;
    replies_.push_back(replies);
    steps().merge_hop(hop, replies, with_edges_);
    head_.download();
    mark();
  }

  // The nodes that were found last, of a type; after `finish`. `times`: null if not wanted.
  int64_t frontier_size(int32_t t) const { return head_.states.host[t].frontier_size; }
  void write_frontier(int32_t t, int64_t* keys, int64_t* times) {
    if (times != nullptr && !inputs_.is_timed()) {
      throw std::invalid_argument("the seeds have no times");
    }
    const FrontierView frontier = nodes_from(t, &state(t)->frontier);
    backend_.run(Count{frontier_size(t)}, WriteFrontier{frontier, keys, times});
  }

  // What it was written to when it was drawn, if it fits. Null: nothing.
  const BatchBlock* block() const { return head_.sizes().writes ? &plan_->block : nullptr; }
  // Whether it fits the sizes to which it was padded.
  bool is_padded() const { return head_.sizes().pads && head_.needs.host->unfit == 0; }

  // Waits for the batch, and draws it again where it found too little room. Returns false if rounds
  // of draws do not find its strict negatives.
  bool finish() {
    if (!plan_.has_value()) sample(plan_without_hops(relations_.size()));
    for (;;) {
      if (has_failed_) {
        throw std::runtime_error(
            "the batch could not be drawn, as an earlier error said: begin another one");
      }
      if (head_.slot().is_under_way) head_.wait_for(head_.slot());
      check_error(*head_.error.host);
      if (head_.needs.host->exceeded == 0) break;
      if (head_.needs.host->negatives > 0) {
        if (!inputs_.draw_more_rounds()) return false;
        draw();
      } else {
        draw_with_more();
      }
    }
    return is_drawn_ = true;
  }

  // What was drawn; after `finish`.
  BatchShape shape() { return head_.shape(); }

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
  ExcludedList excluded(std::size_t relation) const { return inputs_.excluded()[relation].list(); }

  // All nodes of the type whose neighbours an edge type leads to.
  FrontierView nodes_of(std::size_t relation) const {
    return nodes_from(relations_[relation].destination, head_.zero.device);
  }

 private:
  static std::size_t index(int32_t i) { return static_cast<std::size_t>(i); }

  // Of a type, from an index on that the device reads.
  FrontierView nodes_from(int32_t t, const int64_t* first) const {
    const SampleBuffer of = buffer(t);
    return {of.nodes, first, inputs_.is_timed() ? head_.times.device : nullptr, of.id_bits,
            of.disjoint};
  }

  // Of a hop, over all edge types that it draws from.
  int64_t rows_of(std::size_t hop) const {
    int64_t rows = 0;
    for (std::size_t r = 0; r < relations_.size(); ++r) {
      if (!bounds_->steps[hop][r].is_empty()) rows += frontier_size(relations_[r].destination);
    }
    return rows;
  }

  // Makes room, uploads what to draw, and launches it.
  void draw() {
    is_staged_ = false;
    const bool moved = prepare();
    if (inputs_.has_exclusions() && !inputs_.has_links()) {
      recording_.reset();
      head_.upload();
      inputs_.find_excluded(*plan_, head_);
      steps().launch();
      head_.download();
    } else if (head_.sizes().pads || inputs_.has_links()) {
      head_.upload();
      inputs_.make_seeds(*plan_, head_, steps());
      inputs_.find_excluded(*plan_, head_);
      launch_steps(moved, [&] { steps().launch(); });
      head_.download();
    } else {
      launch_steps(moved, [&] {
        head_.upload();
        if (plan_->is_merged) {
          steps().launch_merged(replies_, with_edges_);
        } else {
          steps().launch();
        }
        head_.download();
      });
    }
    mark();
  }

  // Makes room, and writes what to draw. Returns whether memory has moved.
  bool prepare() {
    is_drawn_ = false;
    has_failed_ = true;  // until all of it is launched
    typename BatchHead<Backend>::Slot& slot = head_.next_slot(plan_->block.padding.is_there());
    // What was uploaded is about to be overwritten.
    if (std::exchange(slot.is_unchecked, false)) head_.check(slot);
    if (slot.is_under_way) head_.wait_for(slot);
    const std::vector<int64_t> most = most_seeds();
    bounds_.emplace(*plan_, relations_, most, num_ids_, disjoint_, inputs_.excludes(), learned_);
    // Lost where only a part of the memory has moved when there is no more.
    std::optional<typename Backend::Recording> recording = std::exchange(recording_, std::nullopt);
    const bool moved = make_room(most);
    if (!moved) recording_ = std::move(recording);
    seeds_most_ = most;
    write_head();
    slot.is_under_way = true;
    slot.is_marked = false;
    slot.batch = plan_->batch;
    return moved;
  }

  void mark() {
    backend_.mark(head_.slot().arrived);
    head_.slot().is_marked = true;
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

  // Seeds of each type that there is to be room for: recorded batches have no more, and may have
  // fewer.
  std::vector<int64_t> most_seeds() const {
    std::vector<int64_t> most;
    for (std::size_t t = 0; t < types_.size(); ++t) {
      const int64_t count = inputs_.num_seeds(t);
      const bool is_more = plan_->as_graph && t < seeds_most_.size() && seeds_most_[t] > count;
      most.push_back(is_more ? seeds_most_[t] : count);
    }
    return most;
  }

  // Returns whether any memory that recordings use has moved.
  bool make_room(const std::vector<int64_t>& most_seeds) {
    HeadSizes sizes = sizes_of(*plan_, most_seeds);
    inputs_.lay_out(plan_->graphs, learned_, sizes);
    bool moved = head_.lay_out(sizes);
    for (std::size_t t = 0; t < types_.size(); ++t) {
      moved |= types_[t].prepare(bounds_->room.positions[t], disjoint_ ? sizes.seeds : 0,
                                 with_edges_, plan_->program.is_there());
    }
    return memory_.reserve(bounds_->hops, learned_) || moved;
  }

  void write_head() {
    inputs_.write(head_);
    write_buffers(head_, types_, order_);
    write_hops(head_, *plan_, relations_, order_, inputs_.excluded(), bounds_->steps);
    if (head_.sizes().writes) write_target(head_, plan_->block, relations_, disjoint_);
    steps().plan_first_rows();
  }

  // Nodes and edges that a batch has at most.
  int64_t most_items() const {
    if (head_.sizes().pads) return plan_->block.padding.num_items();
    return head_.sizes().writes ? bounds_->most_items(num_ids_, disjoint_) : 0;
  }

  // Batches of the same bounds and the same memory launch what the second of them has recorded.
  template <class Work>
  void launch_steps(bool afresh, Work&& work) {
    if (!plan_->as_graph || afresh) {
      recording_.reset();
      work();
      return;
    }
    Recorded now = as_recorded();
    if (!recording_.has_value() || !(recorded_ == now)) {
      recording_ = backend_.record(work);
      recorded_ = std::move(now);
    }
    backend_.launch(*recording_);
  }

  Recorded as_recorded() const {
    return {head_.sizes(),      bounds_->hops, methods_of(*plan_),
            inputs_.is_timed(), num_wide(),    most_items()};
  }

  int64_t num_wide() const {
    return std::count_if(types_.begin(), types_.end(), [](auto& t) { return !t.is_narrow(); });
  }

  BatchSteps<Backend> steps() {
    return {backend_,           head_,          memory_,     *plan_, bounds_->hops,
            inputs_.is_timed(), num_wide() > 0, most_items()};
  }

  Backend& backend_;
  std::vector<Relation> relations_;
  RelationOrder order_;
  std::vector<int64_t> num_ids_;  // of each node type
  bool with_edges_;
  bool disjoint_;
  std::vector<TypeMemory<Backend>> types_;
  BatchInputs<Backend> inputs_;

  std::optional<SamplePlan> plan_;
  std::vector<HopReplies> replies_;  // of the hops that others have drawn
  bool is_drawn_ = false;
  bool has_failed_ = false;  // it was not launched, or in part only
  bool is_staged_ = false;   // others have recorded what `launch` launches

  Room learned_;
  std::vector<int64_t> seeds_most_;
  std::optional<BoundsOfBatch> bounds_;

  BatchHead<Backend> head_;
  BatchMemory<Backend> memory_;
  std::optional<typename Backend::Recording> recording_;
  Recorded recorded_;
};

}  // namespace khop::device
