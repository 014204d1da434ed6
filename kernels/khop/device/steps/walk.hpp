// Random walks on a device: a thread walks a whole walk.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/core/csr.hpp"
#include "khop/core/walk.hpp"
#include "khop/device/graph.hpp"
#include "khop/device/operations.hpp"
#include "khop/device/steps/batch_view.hpp"
#include "khop/device/steps/memory.hpp"

namespace khop::device {

// A row of a graph: its place and its edges.
struct WalkRow {
  int64_t row;
  int64_t begin;
  int64_t end;
  ExcludedPositions excluded;

  KHOP_HD int64_t degree() const { return end - begin - excluded.count; }
};

// What a walk does if it comes to a node that has no row or a corrupt one, beside its end.
struct WalkErrors {
  uint64_t* first_bad;  // lowered to the first such walk
  DeviceError* error;   // null: it is not reported

  KHOP_HD void note(int64_t walk, int64_t node, const DeviceCsr& graph) const {
    const int64_t row = graph.row_of(node);
    if (error == nullptr) {
      atomic_min(first_bad, static_cast<uint64_t>(walk));
    } else if (row < 0 || row >= graph.num_rows) {
      error->report(DeviceError::kNoSuchRow, node);
    } else {
      error->report(DeviceError::kCorruptRow, row);
    }
  }
};

// Walk i, from starts[i]. What it reads and writes is in the device's memory.
struct TakeWalk {
  const DeviceCsr* graphs;
  const int32_t* relations;  // null: all steps are over the first graph
  const uint64_t* stops;     // null: `stop` before each step but the first
  uint64_t stop;
  int64_t length;
  WalkBias bias;
  WalkKeys keys;
  const int64_t* starts;
  int64_t* nodes;
  int64_t* edges;  // may be null
  ExcludedList excluded;
  WalkErrors errors;

  KHOP_HD void operator()(int64_t walk) const {
    int64_t node = starts[walk], before = -1;
    WalkRow row_before{-1, 0, 0, {nullptr, 0}};
    write(walk, 0, node);
    for (int64_t step = 0; step < length; ++step) {
      const auto number = static_cast<uint32_t>(step);
      const DeviceCsr& graph = graphs[relations == nullptr ? 0 : relations[step]];
      const uint64_t stop = stop_before(step);
      if (stop != 0 && walk_word(keys.stop(number), walk) < stop) return end(walk, step);
      WalkRow row;
      if (!find(graph, node, row)) {
        errors.note(walk, node, graph);
        return end(walk, step);
      }
      if (row.degree() == 0) return end(walk, step);
      const int64_t edge = bias.is_biased() && step > 0
                               ? draw_biased(graph, number, walk, row, before, row_before)
                               : draw(graph, number, 0, walk, row);
      before = node;
      row_before = row;
      node = graph.indices[edge];
      write(walk, step + 1, node);
      if (edges != nullptr) edges[walk * length + step] = graph.first_edge + edge;
    }
  }

 private:
  KHOP_HD void write(int64_t walk, int64_t place, int64_t node) const {
    nodes[walk * (length + 1) + place] = node;
  }

  KHOP_HD uint64_t stop_before(int64_t step) const {
    if (stops != nullptr) return stops[step];
    return step == 0 ? 0 : stop;
  }

  KHOP_HD void end(int64_t walk, int64_t step) const {
    for (; step < length; ++step) {
      write(walk, step + 1, -1);
      if (edges != nullptr) edges[walk * length + step] = -1;
    }
  }

  // Returns whether a node has a row, and a sound one.
  KHOP_HD bool find(const DeviceCsr& graph, int64_t node, WalkRow& out) const {
    const int64_t row = graph.row_of(node);
    if (row < 0 || row >= graph.num_rows) return false;
    const int64_t begin = graph.indptr[row], end = graph.indptr[row + 1];
    if (!graph.row_is_sound(begin, end)) return false;
    out = {row, begin, end, excluded.of(Row{0, 0, 0, begin, end, end})};
    return true;
  }

  KHOP_HD int64_t draw(const DeviceCsr& graph, uint32_t step, uint32_t trial, int64_t walk,
                       const WalkRow& row) const {
    const uint64_t node = graph.original_id(row.row);
    const int64_t place = walk_pick(keys.step(step, trial), node, walk, row.degree());
    return row.excluded.step_over(row.begin + place);
  }

  static KHOP_HD bool holds(const DeviceCsr& graph, const WalkRow& row, int64_t id) {
    for (int64_t edge = row.begin; edge < row.end; ++edge) {
      if (graph.indices[edge] == id) return true;
    }
    return false;
  }

  KHOP_HD int64_t draw_biased(const DeviceCsr& graph, uint32_t step, int64_t walk,
                              const WalkRow& row, int64_t before, const WalkRow& row_before) const {
    for (uint32_t trial = 0; trial < kWalkTrials; ++trial) {
      const int64_t edge = draw(graph, step, trial, walk, row);
      const int64_t neighbor = graph.indices[edge];
      const uint32_t word = walk_word(keys.accept(step, trial), walk);
      const WalkVerdict verdict = judge_neighbor(bias, word, neighbor == before);
      if (verdict == WalkVerdict::kTaken) return edge;
      if (verdict == WalkVerdict::kRefused) continue;
      const bool near = holds(graph, row_before, neighbor);
      if (near == (verdict == WalkVerdict::kTakenIfNear)) return edge;
    }
    // From the whole row, by running sums of chances: once to add them up, once to find the place.
    uint64_t sum = 0;
    for (int64_t edge = row.begin; edge < row.end; ++edge) {
      sum += chance(graph, graph.indices[edge], before, row_before);
    }
    const uint64_t word = walk_word64(keys.accept(step, kWalkTrials), walk);
    const uint64_t drawn = bounded64(word, sum);
    int64_t edge = row.begin;
    for (uint64_t passed = 0;; ++edge) {
      passed += chance(graph, graph.indices[edge], before, row_before);
      if (drawn < passed) return edge;
    }
  }

  KHOP_HD uint64_t chance(const DeviceCsr& graph, int64_t neighbor, int64_t before,
                          const WalkRow& row_before) const {
    if (neighbor == before) return bias.back;
    return bias.asks_for_edges() && holds(graph, row_before, neighbor) ? bias.near : bias.far;
  }
};

// Walks from starts[0 .. count) as cpu::random_walks; starts, nodes and edges are the host's.
// Waits. Returns -1, or the first walk that comes to a node that has no row or a corrupt one.
template <class Backend>
int64_t random_walks(Backend& backend, const WalkRequest& request, const int64_t* starts,
                     int64_t count, int64_t* nodes, int64_t* edges) {
  if (count == 0) return -1;
  const auto length = static_cast<int64_t>(request.relations.size());
  const auto upload = [&](auto& to, const auto& from) {
    if (!from.empty()) to.upload(from.data(), static_cast<int64_t>(from.size()));
  };
  std::vector<DeviceCsr> views;
  for (const GraphArrays* graph : request.graphs) views.push_back(graph->view());
  // An entry more: there may be no steps.
  DeviceArray<Backend, DeviceCsr> graphs(backend, static_cast<int64_t>(views.size()) + 1);
  DeviceArray<Backend, int32_t> relations(backend, length + 1);
  DeviceArray<Backend, uint64_t> stops(backend, length + 1);
  DeviceArray<Backend, int64_t> from(backend, count);
  const int64_t num_nodes = count * (length + 1);
  DeviceArray<Backend, int64_t> walked(backend, num_nodes);
  DeviceArray<Backend, int64_t> passed(backend);
  upload(graphs, views);
  upload(relations, request.relations);
  upload(stops, request.stops);
  from.upload(starts, count);
  if (edges != nullptr) passed.reserve(count * length + 1);
  const FirstPlaces<Backend> first_bad(backend, 1);
  backend.run(
      Count{count},
      TakeWalk{graphs.data(), relations.data(), stops.data(), 0, length, request.bias, request.keys,
               from.data(), walked.data(), edges == nullptr ? nullptr : passed.data(),
               ExcludedList{nullptr, nullptr}, WalkErrors{first_bad.word(0), nullptr}});
  int64_t bad;
  first_bad.read(&bad);
  if (bad >= 0) return bad;
  walked.download(nodes, num_nodes);
  if (edges != nullptr && length > 0) passed.download(edges, count * length);
  return -1;
}

}  // namespace khop::device
