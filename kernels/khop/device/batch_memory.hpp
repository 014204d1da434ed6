// Memory of a device for the hops of a batch, shared by all edge types and hops.
#pragma once

#include <algorithm>
#include <cstdint>

#include "khop/device/bounds.hpp"
#include "khop/device/candidates.hpp"
#include "khop/device/program_memory.hpp"
#include "khop/device/steps/sample.hpp"

namespace khop::device {

template <class Backend>
class BatchMemory {
 public:
  explicit BatchMemory(Backend& backend)
      : begins_(backend),
        offsets_(backend),
        picks_(backend),
        slots_(backend),
        ranks_(backend),
        scratch_(backend),
        candidates_(backend),
        program_(backend) {}

  // Rows that need words to work in are drawn by so many threads at most, each with its own, and by
  // fewer where these would be more than so many in all (256 MiB).
  static constexpr int64_t kScratchThreads = int64_t{1} << 16;
  static constexpr int64_t kScratchWords = int64_t{1} << 25;

  // Makes room for all hops. Returns whether anything has moved.
  bool reserve(const std::vector<HopBounds>& hops, const Room& learned) {
    HopBounds most;
    for (const HopBounds& hop : hops) {
      most.rows = std::max(most.rows, hop.rows);
      most.picks = std::max(most.picks, hop.picks);
      most.edges = std::max(most.edges, hop.edges);
      most.candidates = std::max(most.candidates, hop.candidates);
      most.words_per_thread = std::max(most.words_per_thread, hop.words_per_thread);
      most.is_filtered |= hop.is_filtered;
    }
    bool moved = begins_.reserve(most.rows);
    moved |= offsets_.reserve(most.rows + 1);
    moved |= picks_.reserve(most.picks);
    moved |= slots_.reserve(most.edges);
    moved |= ranks_.reserve(most.edges + 1);
    if (most.is_filtered) moved |= candidates_.reserve(most.rows, most.candidates);
    most_candidates_ = most.candidates;
    const int64_t words = std::max<int64_t>(most.words_per_thread, 1);
    threads_ = std::min({kScratchThreads, kScratchWords / words, most.rows});
    threads_ = std::max<int64_t>(threads_, 1);
    const int64_t own = product(threads_, most.words_per_thread);
    moved |=
        scratch_.reserve(std::max(own + std::min(kSharedScratch, learned.eager), learned.scratch));
    return moved;
  }

  CandidateEdges<Backend>& candidates() { return candidates_; }
  ProgramMemory<Backend>& program() { return program_; }
  int64_t most_candidates() const { return most_candidates_; }
  int64_t* ranks() const { return ranks_.data(); }
  int64_t threads() const { return threads_; }
  int64_t* offsets() const { return offsets_.data(); }

  Scratch scratch(const HopBounds& hop, int64_t* used) const {
    return {scratch_.data(), hop.words_per_thread, product(threads_, hop.words_per_thread),
            scratch_.capacity(), used};
  }
  HopEdges edges(const BatchView& view, const HopStep* steps, const HopBounds& hop) const {
    const HopRows rows{begins_.data(), picks_.data(), candidates_.kept(), offsets_.data(), nullptr};
    return {view, steps, rows, hop.edges, slots_.data()};
  }

 private:
  // Words beside those of threads: for rows of which edges are excluded.
  static constexpr int64_t kSharedScratch = int64_t{1} << 12;

  int64_t threads_ = 1;
  int64_t most_candidates_ = 0;
  DeviceArray<Backend, int64_t> begins_;
  DeviceArray<Backend, int64_t> offsets_;
  DeviceArray<Backend, int64_t> picks_;
  DeviceArray<Backend, uint32_t> slots_;
  DeviceArray<Backend, int64_t> ranks_;
  DeviceArray<Backend, uint64_t> scratch_;
  CandidateEdges<Backend> candidates_;
  ProgramMemory<Backend> program_;
};

}  // namespace khop::device
