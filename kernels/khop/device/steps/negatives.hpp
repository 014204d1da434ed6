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

// Draws negatives until they join no edge. Keeps its memory from batch to batch.
template <class Backend>
class StrictNegatives {
 public:
  explicit StrictNegatives(Backend& backend)
      : backend_(backend),
        finder_(backend),
        sums_(backend),
        sums_before_(backend),
        kept_(backend),
        kept_before_(backend) {}

  // Draws spec.num_rounds >= 1 times at most. No row holds more than `longest` edges. `first_bad`
  // are three words of ones: lowered to the first negative whose limit of sources, or of
  // destinations, is out of range, and to the first whose row the graph has not. Does not wait.
  template <class Ptr, class Col>
  void launch(const CsrView<Ptr, Col>& graph, const NegativeSpec& spec, int64_t longest,
              uint64_t* first_bad) {
    reserve(spec.count);
    Count count{spec.count};
    which_ = nullptr;
    for (int round = 0; round < spec.num_rounds; ++round) {
      draw(spec, spec.src, round, 0, count, first_bad);
      draw(spec, spec.dst, round, 1, count, first_bad);
      const int64_t* const rows = spec.rows_are_sources ? spec.src.nodes : spec.dst.nodes;
      const int64_t* const others = spec.rows_are_sources ? spec.dst.nodes : spec.src.nodes;
      finder_.find(graph, EdgeQuestions{rows, others, count, which_}, longest, first_bad + 2);
      // The round before reads its own sums and list until this one has made the next.
      std::swap(sums_, sums_before_);
      std::swap(kept_, kept_before_);
      sum(backend_, count, IsEdge{finder_.missing()}, sums_.data());
      backend_.run(count, KeepWrong{finder_.missing(), sums_.data(), which_, kept_.data()});
      count = Count{spec.count, sums_.data() + spec.count};
      which_ = kept_.data();
    }
    num_left_ = count.total;
  }

  // How many join an edge still, in device memory.
  const int64_t* num_left() const { return num_left_; }

 private:
  void reserve(int64_t most) {
    finder_.reserve(most);
    for (auto* sums : {&sums_, &sums_before_}) sums->reserve(most + 1);
    for (auto* kept : {&kept_, &kept_before_}) kept->reserve(most);
  }

  void draw(const NegativeSpec& spec, const NegativeEnd& end, int round, uint32_t side, Count count,
            uint64_t* first_bad) {
    if (!end.drawn) return;
    const uint64_t key = negative_key(spec.run_key, spec.batch, round, side);
    draw_nodes(backend_, {key, end.candidates, end.limits, which_, count}, end.nodes,
               first_bad + side);
  }

  Backend& backend_;
  EdgeFinder<Backend> finder_;
  DeviceArray<Backend, int64_t> sums_, sums_before_;
  DeviceArray<Backend, int64_t> kept_, kept_before_;
  const int64_t* which_ = nullptr;
  const int64_t* num_left_ = nullptr;
};

}  // namespace khop::device
