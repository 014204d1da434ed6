// The steps of a hop that a program draws. Sorts need the number of entries: the host waits for it
// once per layer, and once per hop of walks after the first. The device alone knows how many seeds
// links have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "khop/device/batch_head.hpp"
#include "khop/device/batch_memory.hpp"
#include "khop/device/sample_plan.hpp"
#include "khop/device/steps/layers.hpp"
#include "khop/device/steps/scan.hpp"
#include "khop/device/steps/visits.hpp"
#include "khop/device/steps/walk.hpp"

namespace khop::device {

template <class Backend>
class ProgramSteps {
 public:
  ProgramSteps(Backend& backend, const BatchHead<Backend>& head, BatchMemory<Backend>& memory,
               const SamplePlan& plan)
      : backend_(backend),
        head_(head),
        hop_memory_(memory),
        memory_(memory.program()),
        plan_(plan),
        program_(plan.program) {}

  // Lists the nodes that each row is joined to, with their numbers of visits.
  void list_visited(std::size_t h, const BatchView& batch, Count rows, HopRows& out) {
    const Count all = rows;
    if (h > 0 || head_.sizes().links > 0) {
      backend_.download(&rows.most, rows.total, sizeof(rows.most));
    } else {
      rows.most = std::min(rows.most, head_.row_starts.host[batch.num_relations]);
    }
    const Visits visits{program_.length, program_.num_walks * program_.length, num_ids()};
    const int64_t num_walks = product(rows.most, program_.num_walks);
    const int64_t count = product(num_walks, program_.length);
    const int64_t num_keys = product(rows.most, visits.num_ids);
    if (num_walks >= kMostWalks || num_keys >= kMostKeys || count >= kMostKeys) {
      throw std::length_error("a hop of " + std::to_string(rows.most) + " nodes with " +
                              std::to_string(program_.num_walks) +
                              " walks each is too large: use smaller batches");
    }
    memory_.reserve_visits(num_walks, program_.length);
    walk(h, batch, num_walks);
    const auto none = static_cast<uint64_t>(num_keys);
    const SortPairs sorted = memory_.sorted.pairs();
    backend_.run(Count{count}, KeyVisits{visits, memory_.nodes.data(), none, batch.error,
                                         sorted.keys, sorted.values});
    backend_.sort(count, sorted, bits_for(num_keys + 1));
    const Runs runs = find_runs(count, none);
    const SortPairs ranked = memory_.ranked.pairs();
    const int64_t no_visits = rows.most * visits.most;
    backend_.run(Count{count}, KeyByVisits{visits, runs, static_cast<uint64_t>(no_visits),
                                           ranked.keys, ranked.values});
    backend_.sort(count, ranked, bits_for(no_visits + 1));
    out.picks = memory_.degrees.data();
    out.values = memory_.values.data();
    backend_.run(runs.each(), ListVisited{visits, runs, ranked.values, memory_.degrees.data(),
                                          memory_.values.data()});
    const int64_t fanout = head_.steps.host[h].options.fanout;
    backend_.run(rows, TakeMostVisited{visits, ranked.keys, count, fanout, out.begins,
                                       hop_memory_.offsets()});
    sum(backend_, all, CountOf64{hop_memory_.offsets()}, hop_memory_.offsets());
  }

  // Chooses among the neighbours of a layer's rows, and gives their edges values. Returns how many
  // neighbours these are.
  const int64_t* draw_layer(std::size_t h, const BatchView& batch, const HopStep* steps, Count rows,
                            FilteredRows& filtered, HopRows& out) {
    CandidateEdges<Backend>& work = hop_memory_.candidates();
    backend_.run(rows, SpanFilteredRows{batch, steps, work.begins(), work.counts()});
    const Count found = work.span(backend_, rows);
    int64_t count = 0;
    backend_.download(&count, found.total, sizeof(count));
    count = std::min(count, found.most);  // beyond: the batch is drawn again
    const int64_t nodes = program_.counts[h];
    memory_.reserve_layer(count, nodes, program_.method == Program::kPoisson);
    const Candidates entries = work.candidates(rows.total);
    const auto none = static_cast<uint64_t>(num_ids());
    const SortPairs sorted = memory_.sorted.pairs();
    backend_.run(Count{count}, KeyEntries{batch, entries, none, sorted.keys, sorted.values,
                                          memory_.degrees.data()});
    backend_.sort(count, sorted, bits_for(num_ids() + 1));
    const Runs runs = find_runs(count, none);
    draw_runs(h, batch, runs, nodes);
    backend_.run(Count{count}, SpreadWeights{runs, sorted.values, memory_.of_run.data(),
                                             memory_.of_entry.data()});
    work.keep(backend_, Count{count}, HasWeight{memory_.of_entry.data()}, entries);
    backend_.run(Count{count},
                 CompactWeights{work.ranks(), memory_.of_entry.data(), memory_.kept.data()});
    filtered = {work.offsets(), work.ranks(), count};
    backend_.run(rows, LayerValues{filtered, memory_.kept.data(), program_.scales_rows,
                                   memory_.values.data()});
    out.values = memory_.values.data();
    return found.total;
  }

 private:
  static constexpr int64_t kMostWalks = int64_t{1} << 31;
  static constexpr int64_t kMostKeys = int64_t{1} << 62;
  static constexpr uint32_t kVariates = 2;  // purposes of keys
  static constexpr uint32_t kDraws = 3;
  static constexpr uint32_t kDrawsOfGraph = 4;

  int64_t num_ids() const { return head_.buffers.host[0].num_ids; }

  uint64_t key(uint32_t purpose, std::size_t h) const {
    return program_key(plan_.run_key, plan_.batch, purpose, static_cast<uint32_t>(h), 0);
  }

  void walk(std::size_t h, const BatchView& batch, int64_t num_walks) {
    backend_.run(Count{num_walks}, PlaceStarts{batch, program_.num_walks, memory_.starts.data()});
    const RelationView& relation = head_.relations.host[0];
    const auto first_step = static_cast<uint32_t>(static_cast<int64_t>(h) * program_.length);
    backend_.run(
        Count{num_walks},
        TakeWalk{&head_.relations.device->graph, nullptr, nullptr, program_.stop, program_.length,
                 WalkBias{kOne, kOne, kOne}, WalkKeys(plan_.run_key, plan_.batch, first_step),
                 memory_.starts.data(), memory_.nodes.data(), nullptr, relation.excluded,
                 WalkErrors{nullptr, batch.error}});
  }

  Runs find_runs(int64_t count, uint64_t none) {
    const Runs runs = memory_.runs(count, none);
    backend_.run(Count{count}, MarkRuns{runs});
    sum(backend_, Count{count}, CountOf64{runs.ranks}, runs.ranks);
    backend_.run(Count{count + 1}, FindRuns{runs});
    return runs;
  }

  // Draws the nodes of a layer: the weight of each run.
  void draw_runs(std::size_t h, const BatchView& batch, const Runs& runs, int64_t nodes) {
    const Count entries{runs.count};
    const Importance importance{runs, memory_.sums.data()};
    const bool of_graph = program_.method == Program::kWholeGraph;
    if (!of_graph) {
      backend_.run(entries,
                   EntryMasses{batch, runs, memory_.sorted.pairs().values, memory_.degrees.data(),
                               program_.skips, memory_.sums.data()});
      sum(backend_, entries, CountOf64{memory_.sums.data()}, memory_.sums.data());
    }
    if (program_.method == Program::kPoisson) {
      draw_by_chances(h, importance, nodes);
      return;
    }
    const Urn urn{importance, program_.column_sums, num_ids()};
    int64_t* const times = memory_.words.data();
    backend_.fill(times, 0, bytes_of(runs.count, sizeof(int64_t)));
    if (runs.count > 0) {
      backend_.run(Count{nodes},
                   DrawFromUrn{urn, key(of_graph ? kDrawsOfGraph : kDraws, h), times});
    }
    backend_.run(runs.each(), UrnWeights{urn, nodes, times, memory_.of_run.data()});
  }

  void draw_by_chances(std::size_t h, const Importance& importance, int64_t nodes) {
    const int64_t count = importance.runs.count;
    const int bits = bit_length(count) + scale_bits(count);
    const uint64_t none = (uint64_t{1} << bits) - 1;
    const SortPairs ranked = memory_.ranked.pairs();
    backend_.run(Count{count}, KeyByImportance{importance, none, ranked.keys, ranked.values});
    backend_.sort(count, ranked, bits);
    const Largest largest{ranked.keys, count, none, memory_.largest.data()};
    const Count most{std::min(count, nodes)};
    backend_.run(most, LargestMasses{largest});
    sum(backend_, most, CountOf64{largest.sums}, largest.sums);
    auto* const certain = reinterpret_cast<uint64_t*>(memory_.words.data());
    backend_.fill(certain, 0xFF, sizeof(uint64_t));
    backend_.run(Count{std::min(count, nodes - 1)},
                 FindCertain{importance, largest, nodes, certain});
    backend_.run(importance.runs.each(), PoissonWeights{importance, largest, nodes, certain,
                                                        key(kVariates, h), memory_.of_run.data()});
  }

  static constexpr uint64_t kOne = uint64_t{1} << 32;

  Backend& backend_;
  const BatchHead<Backend>& head_;
  BatchMemory<Backend>& hop_memory_;
  ProgramMemory<Backend>& memory_;
  const SamplePlan& plan_;
  const Program& program_;
};

}  // namespace khop::device
