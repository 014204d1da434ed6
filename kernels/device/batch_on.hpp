// A batch on a device made of a backend: its seeds, the memory that it needs, and the steps that
// draw it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "batch_head.hpp"
#include "bounds.hpp"
#include "candidates.hpp"
#include "excluded_edges.hpp"
#include "faults.hpp"
#include "khop/rng.hpp"
#include "subgraph_types.hpp"
#include "type_memory.hpp"

namespace khop {

template <class Backend>
class BatchOn {
 public:
  BatchOn(Backend& backend, const std::vector<int64_t>& num_nodes,
          std::vector<DeviceRelation> relations, bool with_edges, bool disjoint, int64_t room)
      : backend_(backend),
        relations_(std::move(relations)),
        with_edges_(with_edges),
        disjoint_(disjoint),
        head_(backend),
        picks_(backend),
        counts_(backend),
        offsets_(backend),
        kept_offsets_(backend),
        slots_(backend),
        ranks_(backend),
        scratch_(backend),
        whole_rows_(backend) {
    for (const DeviceRelation& r : relations_) {
      const auto count = static_cast<int32_t>(num_nodes.size());
      if (r.source < 0 || r.source >= count || r.destination < 0 || r.destination >= count) {
        throw std::invalid_argument("an edge type names a node type that does not exist");
      }
      excluded_.emplace_back(backend);
    }
    for (const int64_t count : num_nodes) types_.emplace_back(backend, count, disjoint);
    learned_.positions.assign(num_nodes.size(), 0);
    learned_.eager = room;
    seeds_most_.assign(num_nodes.size(), 0);
  }

  void begin() {
    for (auto& type : types_) type.seeds.clear();
    for (auto& excluded : excluded_) excluded.clear();
    tree_times_.clear();
    num_trees_ = 0;
    plan_.reset();
    is_drawn_ = false;
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
    check(plan);
    plan_ = std::move(plan);
    draw();
  }

  // Waits for the batch, and draws it again where it found too little room.
  // Returns whether there was anything to wait for.
  bool finish() {
    if (is_drawn_) return false;
    if (!plan_.has_value()) sample(no_hops());
    for (;;) {
      head_.download();
      if (head_.fault().code != Fault::kTooMany) break;
      learn();
      draw();
    }
    check_fault(head_.fault());
    is_drawn_ = true;
    return true;
  }

  // What was drawn; after `finish`.
  BatchShape shape() {
    BatchShape shape;
    for (std::size_t t = 0; t < types_.size(); ++t) {
      shape.num_nodes.push_back(head_.state(t).nodes);
      auto& hops = shape.nodes_per_hop.emplace_back();
      hops.push_back(static_cast<int64_t>(types_[t].seeds.size()));
      for (std::size_t h = 0; h < plan_->num_hops(); ++h) hops.push_back(head_.hop_size(h, t));
    }
    for (std::size_t r = 0; r < relations_.size(); ++r) {
      auto& hops = shape.edges_per_hop.emplace_back();
      int64_t total = 0;
      for (std::size_t h = 0; h < plan_->num_hops(); ++h) {
        hops.push_back(head_.record(h, r).num_edges);
        total += hops.back();
      }
      shape.num_edges.push_back(total);
    }
    return shape;
  }

  // For what is made of a drawn batch.
  const std::vector<DeviceRelation>& relations() const { return relations_; }
  bool with_edges() const { return with_edges_; }
  bool disjoint() const { return disjoint_; }
  std::size_t num_hops() const { return plan_->num_hops(); }
  BatchHead<Backend>& head() { return head_; }
  const TypeMemory<Backend>& type(int32_t t) const { return types_[index(t)]; }
  parallel::Stream stream(int32_t t) const {
    return types_[index(t)].stream(head_.device_state(index(t)));
  }
  parallel::HoleList holes(std::size_t relation) const { return excluded_[relation].list(); }

  // The nodes whose neighbours an edge type leads to, from a number on.
  parallel::FrontierView frontier_of(std::size_t relation, const int64_t* begin) const {
    const std::size_t d = index(relations_[relation].destination);
    return {types_[d].stream(nullptr).nodes, begin, is_timed_ ? head_.device_times() : nullptr,
            types_[d].id_bits(), disjoint_};
  }

 private:
  using Stream = parallel::Stream;

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

  void check(const SamplePlan& plan) const {
    for (std::size_t r = 0; r < relations_.size(); ++r) {
      const GraphArrays& graph = plan.graphs[r];
      if (plan.weighted[r] && graph.weight_sums == nullptr) {
        throw std::invalid_argument("weighted draws need a graph with weights");
      }
      for (const int64_t fanout : plan.fanouts[r]) {
        if (plan.replace && fanout > std::numeric_limits<int32_t>::max()) {
          throw std::length_error("a fan-out of " + std::to_string(fanout) +
                                  " with replacement is more than 2^31 - 1");
        }
      }
    }
  }

  SamplePlan no_hops() const {
    const std::size_t count = relations_.size();
    return {std::vector<GraphArrays>(count), std::vector<std::vector<int64_t>>(count),
            std::vector<bool>(count)};
  }

  // Makes room, tells the device what to draw, and has it drawn.
  void draw() {
    const bool has_exclusions =
        std::any_of(excluded_.begin(), excluded_.end(), [](auto& e) { return !e.empty(); });
    std::vector<int64_t> seeds, num_ids;
    for (std::size_t t = 0; t < types_.size(); ++t) {
      seeds_most_[t] = std::max(seeds_most_[t], static_cast<int64_t>(types_[t].seeds.size()));
      seeds.push_back(plan_->as_graph ? seeds_most_[t]
                                      : static_cast<int64_t>(types_[t].seeds.size()));
      num_ids.push_back(types_[t].num_ids());
    }
    std::vector<bool> filtered;
    for (std::size_t r = 0; r < relations_.size(); ++r) {
      filtered.push_back(plan_->weighted[r] || !excluded_[r].empty());
    }
    bounds_.emplace(*plan_, relations_, seeds, num_ids, disjoint_, filtered, learned_);
    const bool moved = make_room(seeds);
    write_head();
    if (has_exclusions) find_excluded();
    is_drawn_ = false;
    play_or_launch(moved || has_exclusions, seeds);
  }

  bool make_room(const std::vector<int64_t>& seeds) {
    std::size_t num_times = 0;
    for (const int64_t count : seeds) num_times += static_cast<std::size_t>(count);
    bool moved = head_.lay_out(types_.size(), relations_.size(), plan_->num_hops(),
                               is_timed_ ? num_times : 0);
    const auto num_trees = static_cast<int64_t>(disjoint_ ? num_times : 0);
    for (std::size_t t = 0; t < types_.size(); ++t) {
      moved |= types_[t].prepare(bounds_->room.positions[t], num_trees, with_edges_);
    }
    for (std::size_t h = 0; h < plan_->num_hops(); ++h) {
      for (std::size_t r = 0; r < relations_.size(); ++r) moved |= make_room_for(h, r);
    }
    return moved;
  }

  bool make_room_for(std::size_t h, std::size_t r) {
    const HopBounds& b = bounds_->hops[h][r];
    if (b.empty()) return false;
    bool moved = offsets_.reserve(b.rows + 1);
    moved |= slots_.reserve(b.edges);
    moved |= ranks_.reserve(b.edges + 1);
    if (b.fanout < 0) {
      moved |= whole_rows_.reserve(b.rows, std::max(b.candidates, whole_room_));
      whole_room_ = std::max(b.candidates, whole_room_);
      moved |= kept_offsets_.reserve(b.rows + 1);
    } else {
      moved |= picks_.reserve(product(b.rows, b.fanout));
      moved |= counts_.reserve(b.rows);
      const int64_t own = product(b.rows, words_per_row(r, b.fanout));
      moved |= scratch_.reserve(
          std::max(own + std::min(kSharedScratch, learned_.eager), learned_.scratch));
    }
    return moved;
  }

  int64_t words_per_row(std::size_t r, int64_t fanout) const {
    if (plan_->weighted[r]) return plan_->replace ? 0 : 2 * fanout;
    const bool scans =
        fanout <= kScanLimit && plan_->graphs[r].max_degree <= std::numeric_limits<uint32_t>::max();
    return plan_->replace || scans ? 0 : parallel::PickedSet::words_for(fanout);
  }

  void write_head() {
    for (std::size_t t = 0; t < types_.size(); ++t) {
      const auto count = static_cast<int64_t>(types_[t].seeds.size());
      head_.state(t) = {count, count, 0, count, count, types_[t].take_stamp(), 0};
      types_[t].upload_seeds();
    }
    for (std::size_t h = 0; h < plan_->num_hops(); ++h) {
      for (std::size_t r = 0; r < relations_.size(); ++r) {
        head_.key(h, r) = step_key(plan_->run_key, plan_->batch, static_cast<uint32_t>(h),
                                   static_cast<uint32_t>(r));
      }
    }
    std::copy(tree_times_.begin(), tree_times_.end(), head_.times());
    head_.upload();
  }

  void find_excluded() {
    for (std::size_t r = 0; r < relations_.size(); ++r) {
      if (excluded_[r].empty()) continue;
      plan_->graphs[r].visit([&](const auto& view) {
        excluded_[r].find(backend_, view, plan_->graphs[r].max_degree, learned_,
                          head_.device_fault(), head_.device_needs());
      });
    }
  }

  // Batches of the same plan and the same memory play what the second of them has recorded.
  void play_or_launch(bool afresh, const std::vector<int64_t>& seeds) {
    if (!plan_->as_graph || afresh) {
      recording_.reset();
      launch(seeds);
      return;
    }
    const Recorded now{*plan_, seeds, is_timed_, learned_};
    if (!recording_.has_value() || !recorded_.serves(now)) {
      recording_ = backend_.record([&] { launch(seeds); });
      recorded_ = now;
    }
    backend_.play(*recording_);
  }

  // What a recording was made of, beside the batch's keys and seeds.
  struct Recorded {
    SamplePlan plan;
    std::vector<int64_t> seeds;
    bool is_timed = false;
    Room learned;

    bool serves(const Recorded& other) const {
      return seeds == other.seeds && is_timed == other.is_timed &&
             plan.fanouts == other.plan.fanouts && plan.weighted == other.plan.weighted &&
             plan.replace == other.plan.replace && plan.last == other.plan.last &&
             plan.graphs == other.plan.graphs && learned.positions == other.learned.positions &&
             learned.candidates == other.learned.candidates &&
             learned.scratch == other.learned.scratch;
    }
  };

  void launch(const std::vector<int64_t>& seeds) {
    for (std::size_t t = 0; t < types_.size(); ++t) {
      const Stream stream = types_[t].stream(head_.device_state(t));
      const int64_t* const count = &head_.device_state(t)->positions;
      backend_.run(Count{seeds[t], count}, parallel::PlaceSeeds{stream});
    }
    for (std::size_t h = 0; h < plan_->num_hops(); ++h) {
      std::optional<std::size_t> last;
      for (std::size_t r = 0; r < relations_.size(); ++r) {
        if (!bounds_->hops[h][r].empty()) last = r;
      }
      const parallel::NextFrontier next{head_.device_states(), static_cast<int64_t>(types_.size()),
                                        head_.device_hop_sizes(h)};
      for (std::size_t r = 0; r < relations_.size(); ++r) {
        if (bounds_->hops[h][r].empty()) continue;
        const auto ends = last == r ? next : parallel::NextFrontier{nullptr, 0, nullptr};
        plan_->graphs[r].visit([&](const auto& view) { launch_hop(h, r, view, ends); });
      }
      if (!last.has_value()) backend_.run(Count{1}, next);
    }
  }

  template <class Ptr, class Col>
  void launch_hop(std::size_t h, std::size_t r, const CsrView<Ptr, Col>& graph,
                  const parallel::NextFrontier& next) {
    const HopBounds& b = bounds_->hops[h][r];
    const auto* const rows = head_.device_state(index(relations_[r].destination));
    const std::size_t s = index(relations_[r].source);
    const Stream stream = types_[s].stream(head_.device_state(s));
    const parallel::FrontierView frontier = frontier_of(r, &rows->frontier);
    const Count row_count{b.rows, &rows->frontier_size};

    const parallel::Scratch scratch{
        scratch_.data(), words_per_row(r, std::max<int64_t>(b.fanout, 0)), shared_from(r, b),
        scratch_.capacity(), head_.device_scratch_used()};
    const Drawn drawn = b.fanout < 0 ? launch_whole_rows(r, b, graph, frontier, row_count)
                                     : launch_picks(h, r, b, graph, frontier, row_count, scratch);

    const Count edges{b.edges, drawn.total, &stream.state->positions, stream.capacity};
    backend_.run(edges, parallel::AppendEdges<Ptr, Col>{graph, frontier, drawn.edges, stream,
                                                        head_.device_fault(), slots_.data()});
    if (!stream.table.narrow) backend_.run(edges, parallel::InsertKeys{stream, slots_.data()});
    backend_.sum(edges, parallel::FirstOfNode{stream, slots_.data()}, ranks_.data());
    backend_.run(edges, parallel::NumberEdges{stream, slots_.data(), ranks_.data()});
    backend_.run(Count{1},
                 parallel::EndHop{edges, drawn.total, ranks_.data(), drawn.candidates, whole_room_,
                                  scratch, stream.state, head_.device_record(h, r),
                                  head_.device_needs(), head_.device_fault(), next});
  }

  // Where, behind the words of rows, those lie that rows share.
  int64_t shared_from(std::size_t r, const HopBounds& b) const {
    return b.fanout < 0 ? 0 : product(b.rows, words_per_row(r, b.fanout));
  }

  struct Drawn {
    parallel::DrawnEdges edges;
    const int64_t* total;
    const int64_t* candidates;
  };

  template <class Ptr, class Col>
  Drawn launch_picks(std::size_t h, std::size_t r, const HopBounds& b,
                     const CsrView<Ptr, Col>& graph, const parallel::FrontierView& frontier,
                     Count rows, const parallel::Scratch& scratch) {
    const bool last = plan_->last && graph.times != nullptr;
    const parallel::PickSpec spec{b.fanout, plan_->replace, plan_->weighted[r], last,
                                  head_.device_key(h, r)};
    backend_.run(rows,
                 parallel::PickRows<Ptr, Col>{graph, frontier, excluded_[r].list(), spec, scratch,
                                              head_.device_fault(), picks_.data(), counts_.data()});
    backend_.sum(rows, parallel::CountOf32{counts_.data()}, offsets_.data());
    return {{offsets_.data(), rows.total, picks_.data(), nullptr, b.fanout},
            offsets_.data() + rows.most,
            nullptr};
  }

  template <class Ptr, class Col>
  Drawn launch_whole_rows(std::size_t r, const HopBounds& b, const CsrView<Ptr, Col>& graph,
                          const parallel::FrontierView& frontier, Count rows) {
    CandidateEdges<Backend>& work = whole_rows_;
    backend_.run(rows, parallel::SpanRows<Ptr, Col>{graph, frontier, head_.device_fault(),
                                                    work.begins(), work.counts()});
    const Count found = work.span(backend_, rows);
    const parallel::Candidates candidates = work.candidates(rows.total);
    if (b.candidates == 0) {
      return {{work.offsets(), rows.total, nullptr, work.begins(), 0}, found.total, nullptr};
    }
    work.keep(
        backend_, found,
        parallel::KeepEdges<Ptr, Col>{graph, candidates, excluded_[r].list(), plan_->weighted[r]},
        candidates);
    backend_.run(rows, parallel::CompactRows{work.offsets(), whole_room_, work.ranks(),
                                             kept_offsets_.data()});
    return {
        {kept_offsets_.data(), rows.total, work.kept(), nullptr, 0}, work.num_kept(), found.total};
  }

  void learn() {
    const auto grown = [](int64_t needed) { return needed + needed / 4; };
    for (std::size_t t = 0; t < types_.size(); ++t) {
      learned_.positions[t] = std::max(learned_.positions[t], grown(head_.state(t).needed));
    }
    learned_.candidates = std::max(learned_.candidates, grown(head_.needs().candidates));
    learned_.scratch = std::max(learned_.scratch, grown(head_.needs().scratch));
  }

  // Words beside those of rows: for rows of which edges are excluded.
  static constexpr int64_t kSharedScratch = int64_t{1} << 12;

  Backend& backend_;
  std::vector<DeviceRelation> relations_;
  bool with_edges_;
  bool disjoint_;
  std::vector<TypeMemory<Backend>> types_;
  std::vector<ExcludedEdges<Backend>> excluded_;

  std::optional<SamplePlan> plan_;
  std::vector<int64_t> tree_times_;
  int64_t num_trees_ = 0;
  bool is_timed_ = false;
  bool is_drawn_ = false;

  Room learned_;
  std::vector<int64_t> seeds_most_;
  std::optional<BoundsOfBatch> bounds_;
  int64_t whole_room_ = 0;

  BatchHead<Backend> head_;
  DeviceArray<Backend, int64_t> picks_;
  DeviceArray<Backend, int32_t> counts_;
  DeviceArray<Backend, int64_t> offsets_;
  DeviceArray<Backend, int64_t> kept_offsets_;
  DeviceArray<Backend, uint32_t> slots_;
  DeviceArray<Backend, int64_t> ranks_;
  DeviceArray<Backend, uint64_t> scratch_;
  CandidateEdges<Backend> whole_rows_;
  std::optional<typename Backend::Recording> recording_;
  Recorded recorded_;
};

}  // namespace khop
