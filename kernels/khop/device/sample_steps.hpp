// The steps that draw a batch, launched hop by hop. What they need beside bounds and memory lies in
// the head: the same launches serve any batch of these bounds, which is why they can be recorded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "khop/device/batch_head.hpp"
#include "khop/device/batch_memory.hpp"
#include "khop/device/bounds.hpp"
#include "khop/device/program_steps.hpp"
#include "khop/device/steps/merge.hpp"
#include "khop/device/steps/sample.hpp"
#include "khop/device/steps/scan.hpp"

namespace khop::device {

// For as long as it takes to launch a batch.
template <class Backend>
class BatchSteps {
 public:
  // As many as a large GPU runs at a time.
  static constexpr int64_t kNumberingBlocks = 768;

  BatchSteps(Backend& backend, const BatchHead<Backend>& head, BatchMemory<Backend>& memory,
             const SamplePlan& plan, const std::vector<HopBounds>& hops, bool is_timed,
             bool has_wide_keys, int64_t most_items)
      : backend_(backend),
        head_(head),
        memory_(memory),
        plan_(plan),
        hops_(hops),
        is_timed_(is_timed),
        has_wide_keys_(has_wide_keys),
        most_items_(most_items) {}

  // Plans the rows of the first hop, on the host.
  void plan_first_rows() const {
    const BatchView batch = view(true);
    const PlanRows rows = plan_rows(0, batch, head_.steps.host);
    for (int64_t k = 0; k < batch.num_relations; ++k) rows.count(k);
    rows.add_up();
  }

  // The same for the device.
  BatchView device_view() const { return view(false); }
  PlanRows first_rows() const { return plan_rows(0, view(false), head_.steps.device); }

  void launch() {
    const BatchView batch = view(false);
    place_seeds(batch);
    for (std::size_t h = 0; h < hops_.size(); ++h) launch_hop(h, batch);
    if (!head_.sizes().writes) return;
    if (head_.sizes().pads) {
      backend_.run(Count{most_items_}, padded(hops_.size() - 1, batch));
      return;
    }
    const PlanWrite plan = plan_write(hops_.size() - 1, batch);
    backend_.run(Count{most_items_, &plan.target->num_items},
                 WriteAhead{plan.pieces, plan.num_pieces()});
  }

  // Of a batch whose rows others draw: the seeds, and the hops that they have drawn.
  void launch_merged(const std::vector<HopReplies>& replies, bool with_edges) {
    place_seeds(view(false));
    for (std::size_t h = 0; h < replies.size(); ++h) merge_hop(h, replies[h], with_edges);
  }

  void merge_hop(std::size_t h, const HopReplies& replies, bool with_edges) {
    const BatchView batch = view(false);
    const HopBounds& b = hops_[h];
    const HopEdges edges = memory_.edges(batch, steps_of(h), b);
    Count found{0};
    if (!b.empty()) {
      const Count rows = rows_of(h, batch);
      sum(backend_, rows, CountOf64{replies.counts}, memory_.offsets());
      found = Count{b.edges, memory_.offsets() + rows.most};
      append(edges, found, RepliedEdges{replies, with_edges});
    }
    end_hop(h, edges, found, nullptr);
  }

  // Picks the edges of a hop's rows, without a batch that takes them.
  HopEdges pick(std::size_t h) {
    const BatchView batch = view(false);
    const int64_t* num_candidates = nullptr;
    HopEdges edges = memory_.edges(batch, steps_of(h), hops_[h]);
    pick_hop(h, batch, edges.rows, num_candidates);
    return edges;
  }

  // The edges of rows of the first hop of which all are drawn that have a weight.
  int64_t count_candidates() {
    const BatchView batch = view(false);
    CandidateEdges<Backend>& work = memory_.candidates();
    const Count rows = rows_of(0, batch);
    work.reserve(rows.most, 0);
    backend_.run(rows, SpanFilteredRows{batch, steps_of(0), work.begins(), work.counts()});
    int64_t total = 0;
    backend_.download(&total, work.span(backend_, rows).total, sizeof(total));
    return total;
  }

 private:
  void place_seeds(const BatchView& batch) {
    const int64_t* const starts = head_.seed_starts.device;
    backend_.run(Count{head_.sizes().seeds, starts + batch.num_types},
                 PlaceSeeds{batch, head_.seeds.device, starts});
  }

  const HopStep* steps_of(std::size_t h) const {
    return head_.steps.device + h * static_cast<std::size_t>(head_.sizes().relations);
  }
  Count rows_of(std::size_t h, const BatchView& batch) const {
    return {hops_[h].rows, batch.row_starts + batch.num_relations};
  }

  // The tables as the host, or the device, reads them.
  BatchView view(bool on_host) const {
    const auto at = [on_host](const auto& part) { return on_host ? part.host : part.device; };
    return {at(head_.buffers),    at(head_.relations),     at(head_.states),
            at(head_.needs),      at(head_.error),         is_timed_ ? at(head_.times) : nullptr,
            head_.sizes().types,  head_.sizes().relations, at(head_.row_starts),
            at(head_.pick_starts)};
  }

  // There may be no such hop.
  PlanRows plan_rows(std::size_t h, const BatchView& batch, const HopStep* steps) const {
    if (h >= hops_.size()) return {batch, nullptr, 0, 0};
    return {batch, steps + h * batch.num_relations, hops_[h].rows, hops_[h].picks};
  }

  PlanWrite plan_write(std::size_t h, const BatchView& batch) const {
    const bool is_last = h + 1 == hops_.size();
    return {batch,
            is_last && head_.sizes().writes && !head_.sizes().pads ? head_.target.device : nullptr,
            head_.edge_targets.device,
            head_.records.device,
            head_.parts.device,
            head_.pieces.device,
            static_cast<int64_t>(hops_.size())};
  }

  PaddedBatch padded(std::size_t h, const BatchView& batch) const {
    const bool is_last = h + 1 == hops_.size();
    return {batch,
            is_last && head_.sizes().pads ? head_.target.device : nullptr,
            head_.edge_targets.device,
            head_.sections.device,
            head_.pad_parts.device,
            head_.seed_starts.device,
            head_.hop_sizes.device,
            head_.records.device,
            static_cast<int64_t>(hops_.size())};
  }

  void launch_hop(std::size_t h, const BatchView& batch) {
    HopEdges edges = memory_.edges(batch, steps_of(h), hops_[h]);
    const int64_t* num_candidates = nullptr;
    Count found{0};
    if (!hops_[h].empty()) {
      found = pick_hop(h, batch, edges.rows, num_candidates);
      append(edges, found, PickedEdges{});
    }
    end_hop(h, edges, found, num_candidates);
  }

  // Returns how many edges were drawn. Sets where `out` has them, if a program draws, and
  // `num_candidates` where some were chosen among.
  Count pick_hop(std::size_t h, const BatchView& batch, HopRows& out,
                 const int64_t*& num_candidates) {
    const HopBounds& b = hops_[h];
    const HopStep* const steps = steps_of(h);
    const Count rows = rows_of(h, batch);
    const Count found{b.edges, memory_.offsets() + rows.most};
    ProgramSteps<Backend> program(backend_, head_, memory_, plan_);
    if (plan_.program.method == Program::kVisits) {
      program.list_visited(h, batch, rows, out);
      return found;
    }
    const Scratch scratch = memory_.scratch(b, head_.scratch_used.device);
    FilteredRows filtered{nullptr, nullptr, 0};
    if (plan_.program.is_there()) {
      num_candidates = program.draw_layer(h, batch, steps, rows, filtered, out);
    } else if (b.is_filtered) {
      num_candidates = find_candidates(batch, steps, rows, filtered);
    }
    const int64_t threads = b.words_per_thread > 0 ? memory_.threads() : rows.most;
    if (is_labor(h, batch.num_relations)) {
      pick_rows<KeyedByNeighbor>(rows, threads, {batch, steps, filtered, scratch, out});
    } else {
      pick_rows<KeyedByRow>(rows, threads, {batch, steps, filtered, scratch, out});
    }
    return found;
  }

  void end_hop(std::size_t h, const HopEdges& edges, Count found, const int64_t* num_candidates) {
    const BatchView& batch = edges.batch;
    const Scratch scratch = memory_.scratch(hops_[h], head_.scratch_used.device);
    const int64_t blocks = (found.most + kBlockThreads - 1) / kBlockThreads;
    backend_.run_blocks(
        std::clamp<int64_t>(blocks, 1, kNumberingBlocks),
        EndHop{edges, found, memory_.ranks(), num_candidates, memory_.most_candidates(), scratch,
               head_.records.device + h * batch.num_relations,
               head_.hop_sizes.device + h * batch.num_types,
               plan_rows(h + 1, batch, head_.steps.device), plan_write(h, batch), padded(h, batch),
               plan_.layer_wise, backend_.block_words()});
  }

  // All edge types of a hop are drawn by the same method.
  bool is_labor(std::size_t h, int64_t num_relations) const {
    return num_relations > 0 &&
           head_.steps.host[h * num_relations].options.method == HopMethod::kLabor;
  }

  template <class Keys>
  void pick_rows(Count rows, int64_t threads, const PickRows<Keys>& step) {
    sum(backend_, rows, step, memory_.offsets(), threads);
  }

  // Of rows that are taken whole, the edges that are drawn. Returns how many edges they have.
  const int64_t* find_candidates(const BatchView& batch, const HopStep* steps, Count rows,
                                 FilteredRows& filtered) {
    CandidateEdges<Backend>& work = memory_.candidates();
    backend_.run(rows, SpanFilteredRows{batch, steps, work.begins(), work.counts()});
    const Count found = work.span(backend_, rows);
    const Candidates candidates = work.candidates(rows.total);
    work.keep(backend_, found, KeepEdges{batch, steps, candidates}, candidates);
    filtered = {work.offsets(), work.ranks(), found.most};
    return found.total;
  }

  template <class Drawn>
  void append(const HopEdges& edges, Count count, const Drawn& drawn_by) {
    backend_.run(count, AppendEdges<Drawn>{edges, drawn_by});
    if (has_wide_keys_) backend_.run(count, InsertKeys{edges});
    sum(backend_, count, FirstOfNode{edges}, memory_.ranks());
  }

  Backend& backend_;
  const BatchHead<Backend>& head_;
  BatchMemory<Backend>& memory_;
  const SamplePlan& plan_;
  const std::vector<HopBounds>& hops_;
  bool is_timed_;
  bool has_wide_keys_;
  int64_t most_items_;  // nodes and edges to be written
};

}  // namespace khop::device
