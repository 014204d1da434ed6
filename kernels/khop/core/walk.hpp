// Random walks: what a step draws, and which neighbours a biased one takes.
//
// A step goes to a uniform neighbour. With bias it depends on the node before, t, as in node2vec
// (Grover & Leskovec, KDD 2016): a neighbour is drawn uniformly and taken with a chance that is
// `back` for t itself, `near` for a neighbour of t, and `far` for any other. After `kWalkTrials`
// neighbours that were not taken, one is drawn from the whole row by its chances.
//
// Every number is keyed by the walk's index, its step and its trial, and rows by original ids. The
// keys are those of src/khop/sampler/methods/walk.py, which walks over partitions step by step: the
// walks are the same.
#pragma once

#include <cstdint>

#include "khop/core/pick.hpp"
#include "khop/core/rng.hpp"

namespace khop {

// Purposes of keys: of a step's neighbour, of its acceptance, and of an end before it.
constexpr uint32_t kWalkStep = 16;
constexpr uint32_t kWalkAccept = 17;
constexpr uint32_t kWalkStop = 18;

constexpr uint32_t kWalkTrials = 16;

// Chances to take a neighbour, of 2^32.
struct WalkBias {
  uint64_t back;
  uint64_t near;
  uint64_t far;

  KHOP_HD bool is_biased() const { return back != near || near != far; }
  KHOP_HD bool asks_for_edges() const { return near != far; }
};

// Keys of the walks of a batch.
class WalkKeys {
 public:
  KHOP_HD WalkKeys(uint64_t run, uint64_t batch, uint32_t first_step)
      : step_(step_key(run, batch, kProgramHop, kWalkStep)),
        accept_(step_key(run, batch, kProgramHop, kWalkAccept)),
        stop_(step_key(run, batch, kProgramHop, kWalkStop)),
        first_step_(first_step) {}

  KHOP_HD uint64_t step(uint32_t step, uint32_t trial) const { return of(step_, step, trial); }
  KHOP_HD uint64_t accept(uint32_t step, uint32_t trial) const { return of(accept_, step, trial); }
  KHOP_HD uint64_t stop(uint32_t step) const { return of(stop_, step, 0); }

 private:
  // What program_key makes of a purpose's key.
  KHOP_HD uint64_t of(uint64_t purpose, uint32_t step, uint32_t trial) const {
    return step_key(purpose, 0, first_step_ + step, trial);
  }

  uint64_t step_;
  uint64_t accept_;
  uint64_t stop_;
  uint32_t first_step_;
};

KHOP_HD uint64_t walk_word64(uint64_t key, int64_t walk) {
  return first_64_bits(NodeDraws{key, static_cast<uint64_t>(walk), 0}.block(0));
}

KHOP_HD uint32_t walk_word(uint64_t key, int64_t walk) {
  return static_cast<uint32_t>(walk_word64(key, walk) >> 32);
}

// The place that a walk draws in the row of a node, given by its original id; `degree` > 0.
KHOP_HD int64_t walk_pick(uint64_t key, uint64_t node, int64_t walk, int64_t degree) {
  int64_t place = 0;
  pick_with_replacement(NodeDraws{key, node, static_cast<uint32_t>(walk)}, degree, 1, &place);
  return place;
}

// Whether a drawn neighbour is taken; where that depends on an edge from the node before to it, the
// edge is looked for only then.
enum class WalkVerdict { kTaken, kRefused, kTakenIfNear, kTakenIfFar };

KHOP_HD WalkVerdict judge_neighbor(const WalkBias& bias, uint32_t word, bool is_back) {
  if (is_back) return word < bias.back ? WalkVerdict::kTaken : WalkVerdict::kRefused;
  const bool near = word < bias.near;
  const bool far = word < bias.far;
  if (near == far) return near ? WalkVerdict::kTaken : WalkVerdict::kRefused;
  return near ? WalkVerdict::kTakenIfNear : WalkVerdict::kTakenIfFar;
}

}  // namespace khop
