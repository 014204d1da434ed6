// Negatives that join no edge of a graph: rounds of draws and checks that never leave the device.
#pragma once

#include <cstdint>
#include <utility>

#include "khop/core/search.hpp"
#include "khop/device/steps/backend.hpp"
#include "khop/device/steps/edges.hpp"
#include "khop/device/steps/memory.hpp"
#include "khop/device/steps/negative_draws.hpp"

namespace khop::device {

// One end of the negatives of a batch.
struct NegativeEnd {
  NodeCandidates candidates;
  Bounds limits;
  int64_t* nodes;  // of each negative
  bool drawn;      // false: the nodes are given
};

// What the negatives of a batch are drawn by, as in sampler/drawing/negative.py.
struct NegativeSpec {
  uint64_t run_key;
  uint64_t batch;
  int64_t count;
  int num_rounds;
  NegativeEnd src;
  NegativeEnd dst;
  bool rows_are_sources;  // the graph's rows hold the destinations of a source, not the reverse
};

struct IsEdge {
  const uint64_t* missing;
  KHOP_HD int64_t operator()(int64_t i) const { return missing[i] == 0 ? 1 : 0; }
};

// Keeps the negatives that are edges, in their order.
struct KeepWrong {
  const uint64_t* missing;
  const int64_t* sums;
  const int64_t* which;  // null: all
  int64_t* kept;

  KHOP_HD void operator()(int64_t i) const {
    if (missing[i] == 0) kept[sums[i]] = which == nullptr ? i : which[i];
  }
};

// What is wrong with a batch's negatives, if anything.
struct NegativeError {
  int64_t src_limit;  // the first negative whose sources' limit is not in [1, candidates], or -1
  int64_t dst_limit;
  bool no_row;  // a node of the graph's rows has none, or a corrupt one
};

// Draws negatives until they join no edge, spec.num_rounds >= 1 times at most. The numbers of those
// that still do, ascending, are then `left`, [count] long, and `num_left` is their number.
// No row holds more than `longest` edges. Waits at the end alone.
template <class Backend, class Ptr, class Col>
NegativeError draw_strict_negatives(Backend& backend, const CsrView<Ptr, Col>& graph,
                                    const NegativeSpec& spec, int64_t longest, int64_t* left,
                                    int64_t* num_left) {
  const int64_t most = spec.count;
  EdgeFinder<Backend> finder(backend, most);
  const FirstPlaces<Backend> first_bad(backend, 3);
  DeviceArray<Backend, int64_t> sums(backend, most + 1), sums_before(backend, most + 1);
  DeviceArray<Backend, int64_t> kept(backend, most), kept_before(backend, most);
  const auto key = [&](int round, uint32_t end) {
    return step_key(spec.run_key, spec.batch, kNegativeHop, 2 * static_cast<uint32_t>(round) + end);
  };
  Count count{most};
  const int64_t* which = nullptr;
  for (int round = 0; round < spec.num_rounds; ++round) {
    const auto draw = [&](const NegativeEnd& end, uint32_t number) {
      if (!end.drawn) return;
      draw_nodes(backend, {key(round, number), end.candidates, end.limits, which, count}, end.nodes,
                 first_bad.word(number));
    };
    draw(spec.src, 0);
    draw(spec.dst, 1);
    const int64_t* const rows = spec.rows_are_sources ? spec.src.nodes : spec.dst.nodes;
    const int64_t* const others = spec.rows_are_sources ? spec.dst.nodes : spec.src.nodes;
    finder.find(graph, EdgeQuestions{rows, others, count, which}, longest, first_bad.word(2));
    // The round before reads its own sums and list until this one has made the next.
    std::swap(sums, sums_before);
    std::swap(kept, kept_before);
    sum(backend, count, IsEdge{finder.missing()}, sums.data());
    backend.run(count, KeepWrong{finder.missing(), sums.data(), which, kept.data()});
    count = Count{most, sums.data() + most};
    which = kept.data();
  }
  backend.run(count, CopyValues<int64_t>{which, left});
  int64_t bad[3];
  first_bad.read(bad);
  backend.download(num_left, sums.data() + most, sizeof(int64_t));
  return {bad[0], bad[1], bad[2] >= 0};
}

}  // namespace khop::device
