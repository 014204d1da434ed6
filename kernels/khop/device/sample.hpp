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
#include "khop/device/links.hpp"
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
        links_(backend),
        head_(backend),
        memory_(backend) {
    for (std::size_t r = 0; r < relations_.size(); ++r) excluded_.emplace_back(backend);
    for (const int64_t count : num_nodes) types_.emplace_back(backend, count, disjoint);
    learned_.positions.assign(num_nodes.size(), 0);
    learned_.eager = room;
  }
  BatchOn(const BatchOn&) = delete;
  BatchOn& operator=(const BatchOn&) = delete;
  // The device may still be copying from the host's side of the head.
  ~BatchOn() {
    const auto& slots = head_.slots();
    if (std::any_of(slots.begin(), slots.end(), [](auto& s) { return s->is_under_way; })) {
      backend_.wait_quietly();
    }
  }

  void begin() {
    for (auto& type : types_) type.seeds.clear();
    for (auto& excluded : excluded_) excluded.clear();
    links_.clear();
    tree_times_.clear();
    replies_.clear();
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

  // In place of seeds.
  void add_links(const LinkBatch& links) {
    const int64_t* const columns[] = {links.src, links.dst};
    for (int side = 0; side < 2; ++side) {
      types_[index(links.plan.ends[side].type)].check_ids(columns[side], links.num_links);
    }
    if (!disjoint_ && links.times != nullptr) {
      throw std::invalid_argument("links with times need a disjoint batch");
    }
    links_.take(links, disjoint_);
    for (const LinkPlan::Exclusion& exclusion : links.plan.excluded) {
      excluded_[index(exclusion.relation)].take_links(links.num_links, exclusion.rows_are_sources);
    }
    if (disjoint_) check_trees(num_trees_ = links_.num_ends());
    is_timed_ = links_.is_timed();
  }

  void exclude(int32_t relation, const int64_t* rows, const int64_t* neighbors, int64_t count) {
    if (!links_.empty()) throw std::invalid_argument("links name the edges that they exclude");
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
    if (!head_.slot().is_under_way || has_failed_) return false;
    wait_for(head_.slot());
    return head_.error.host->code == DeviceError::kNone && head_.needs.host->exceeded == 0;
  }

  // For a padded batch that is used before it is known whether it fits: a later call says if it
  // did not. Returns false where it may have to be drawn again: `finish` must be called then.
  bool leave_unchecked() {
    typename BatchHead<Backend>::Slot& slot = head_.slot();
    if (has_failed_ || !slot.is_under_way || !head_.sizes().pads || !bounds_->is_certain ||
        has_uncertain_exclusions() || links_.is_strict()) {
      return false;
    }
    return slot.is_unchecked = true;
  }
  // Waits for the batches that were left unchecked.
  void check_all() {
    for (const auto& slot : head_.slots()) {
      if (slot->is_unchecked) check(*slot);
    }
  }

  // Writes what the next batch needs, and uploads it, for `launch`: by whom kernels are recorded
  // with others' work. Throws if they are not those that `launch` has launched.
  void stage(SamplePlan plan) {
    check_plan(plan);
    plan_ = std::move(plan);
    const bool moved = prepare();
    if (has_exclusions() || !links_.empty() || !head_.sizes().pads) {
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
    const SampleBuffer of = buffer(t);
    if (times != nullptr && !is_timed_) throw std::invalid_argument("the seeds have no times");
    const FrontierView frontier{of.nodes, &state(t)->frontier,
                                is_timed_ ? head_.times.device : nullptr, of.id_bits, of.disjoint};
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
      if (head_.slot().is_under_way) wait_for(head_.slot());
      check_error(*head_.error.host);
      if (head_.needs.host->exceeded == 0) break;
      if (head_.needs.host->negatives > 0) {
        if (!links_.draw_more_rounds()) return false;
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
    if (has_exclusions() && links_.empty()) {
      recording_.reset();
      head_.upload();
      find_excluded();
      steps().launch();
      head_.download();
    } else if (head_.sizes().pads || !links_.empty()) {
      head_.upload();
      make_seeds();
      find_excluded();
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
    if (std::exchange(slot.is_unchecked, false)) check(slot);
    if (slot.is_under_way) wait_for(slot);
    const std::vector<int64_t> most = most_seeds();
    find_bounds(most);
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

  bool has_exclusions() const {
    return std::any_of(excluded_.begin(), excluded_.end(), [](auto& e) { return !e.empty(); });
  }

  bool has_uncertain_exclusions() const {
    return std::any_of(excluded_.begin(), excluded_.end(),
                       [](auto& e) { return !e.empty() && !e.is_certain(); });
  }

  // Seeds of a type, or where links say only that, at most.
  int64_t num_seeds(std::size_t t) const {
    return static_cast<int64_t>(types_[t].seeds.size()) + links_.most_seeds(t);
  }

  // Seeds of each type that there is to be room for: recorded batches have no more, and may have
  // fewer.
  std::vector<int64_t> most_seeds() const {
    std::vector<int64_t> most;
    for (std::size_t t = 0; t < types_.size(); ++t) {
      const int64_t count = num_seeds(t);
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
    if (!links_.empty()) sizes.links = static_cast<int64_t>(links_.words().size());
    sizes.writes = plan_->block.words != nullptr && plan_->num_hops() > 0;
    sizes.pads = sizes.writes && plan_->block.padding.is_there();
    const int64_t num_trees = disjoint_ ? sizes.seeds : 0;
    for (std::size_t r = 0; r < relations_.size(); ++r) {
      if (excluded_[r].empty()) continue;
      const GraphArrays& graph = plan_->graphs[r];
      sizes.others += static_cast<int64_t>(excluded_[r].lay_out(graph.view()).size());
      excluded_[r].reserve(graph.max_degree, learned_);
    }
    bool moved = head_.lay_out(sizes);
    for (std::size_t t = 0; t < types_.size(); ++t) {
      moved |= types_[t].prepare(bounds_->room.positions[t], num_trees, with_edges_,
                                 plan_->program.is_there());
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
    if (head_.sizes().pads) write_sections();
  }

  void write_sections() {
    const PadSizes& sizes = plan_->block.padding;
    const std::vector<int64_t> lengths = padded_lengths(sizes, disjoint_, plan_->block.edges);
    const std::size_t types = types_.size();
    PadSection* section = head_.sections.host;
    int64_t item = 0;
    std::vector<int64_t> starts(lengths.size(), 0);
    std::partial_sum(lengths.begin(), lengths.end() - 1, starts.begin() + 1);
    std::size_t other = types;                                      // trees
    std::size_t mask = lengths.size() - types - relations_.size();  // of nodes, then of edges
    const auto place = [&](std::size_t k, std::size_t at, bool has_other, const auto& of_type) {
      PadPart& part = head_.pad_parts.host[k];
      part.first = item;
      part.at = starts[at];
      if (has_other) part.other_at = starts[other++];
      part.mask_at = starts[mask++];
      for (const int64_t size : of_type) {
        *section++ = {item, size, size - (sizes.leaves_room && size > 0 ? 1 : 0)};
        item += size;
      }
      part.rows = item - part.first;
    };
    for (std::size_t t = 0; t < types; ++t) place(t, t, disjoint_, sizes.nodes[t]);
    const std::size_t ends = other;
    other += relations_.size();
    for (std::size_t r = 0; r < relations_.size(); ++r) {
      place(types + r, ends + r, plan_->block.edges[r].is_named != 0, sizes.edges[r]);
      head_.pad_parts.host[types + r].source = relations_[r].source;
      head_.pad_parts.host[types + r].destination = relations_[r].destination;
    }
  }

  void wait_for(typename BatchHead<Backend>::Slot& slot) {
    if (slot.is_marked) {
      backend_.wait(slot.arrived);
    } else {
      backend_.synchronize();
    }
    slot.is_under_way = false;
  }

  // Of a batch that was used before this was known.
  void check(typename BatchHead<Backend>::Slot& slot) {
    slot.is_unchecked = false;
    if (slot.is_under_way) wait_for(slot);
    check_error(*slot.error);
    if (slot.needs->exceeded == 0 && slot.needs->unfit == 0) return;
    throw std::invalid_argument(
        "batch " + std::to_string(slot.batch) +
        " has more nodes or edges than pad's sizes, and has been delivered as padding alone: pass "
        "larger sizes, or pad='auto'");
  }

  // Nodes and edges that a batch has at most.
  int64_t most_items() const {
    int64_t most = 0;
    if (head_.sizes().pads) {
      for (const auto* of : {&plan_->block.padding.nodes, &plan_->block.padding.edges}) {
        for (const auto& sizes : *of) most = std::accumulate(sizes.begin(), sizes.end(), most);
      }
      return most;
    }
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
      // The device counts distinct ends of links.
      const int64_t count = links_.empty() || disjoint_ ? num_seeds(t) : 0;
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
    if (!links_.empty()) {
      std::copy(links_.words().begin(), links_.words().end(), head_.links.host);
    }
  }

  void make_seeds() {
    if (!links_.empty()) {
      links_.launch(*plan_, head_.links.device, head_, steps().device_view(), steps().first_rows());
    }
  }

  void find_excluded() {
    const int64_t* words = head_.others.device;
    for (std::size_t r = 0; r < relations_.size(); ++r) {
      if (excluded_[r].empty()) continue;
      if (!links_.empty()) {
        excluded_[r].find_links(backend_, plan_->graphs[r].view(),
                                links_.columns(head_.links.device).data(),
                                links_.num_nodes().data(), head_.error.device, head_.needs.device);
        continue;
      }
      excluded_[r].find(backend_, plan_->graphs[r].view(), words, head_.error.device,
                        head_.needs.device);
      words += excluded_[r].words().size();
    }
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
    return {head_.sizes(), bounds_->hops, methods_of(*plan_), is_timed_, num_wide(), most_items()};
  }

  int64_t num_wide() const {
    return std::count_if(types_.begin(), types_.end(), [](auto& t) { return !t.is_narrow(); });
  }

  BatchSteps<Backend> steps() {
    return {backend_,      head_,     memory_,        *plan_,
            bounds_->hops, is_timed_, num_wide() > 0, most_items()};
  }

  Backend& backend_;
  std::vector<Relation> relations_;
  RelationOrder order_;
  bool with_edges_;
  bool disjoint_;
  std::vector<TypeMemory<Backend>> types_;
  std::vector<ExcludedEdges<Backend>> excluded_;
  LinkSeeds<Backend> links_;

  std::optional<SamplePlan> plan_;
  std::vector<int64_t> tree_times_;
  std::vector<HopReplies> replies_;  // of the hops that others have drawn
  int64_t num_trees_ = 0;
  bool is_timed_ = false;
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
