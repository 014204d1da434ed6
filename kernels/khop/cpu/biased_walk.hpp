// Walks with bias: each is in a state of its own, since trials differ in number.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "khop/cpu/walk.hpp"

namespace khop::cpu {

class BiasedWalks {
 public:
  BiasedWalks(const WalkPlan& plan, const WalkRecord& record, WaitingWalks& waiting)
      : plan_(plan), record_(record), waiting_(waiting) {
    for (int64_t step = 0; step < std::min(plan.length(), kTabledSteps); ++step) {
      for (uint32_t trial = 0; trial < kTabledTrials; ++trial) {
        keys_.push_back({plan.keys.step(static_cast<uint32_t>(step), trial),
                         plan.keys.accept(static_cast<uint32_t>(step), trial)});
      }
    }
  }

  void run() {
    int64_t count = 0;
    while (count < kAtATime && refill(lanes_[static_cast<std::size_t>(count)])) ++count;
    while (count > 0) {
      for (int64_t i = 0; i < count; ++i) {
        Lane& lane = lanes_[static_cast<std::size_t>(i)];
        if (!advance(lane) && !refill(lane)) {
          lane = lanes_[static_cast<std::size_t>(--count)];
          --i;
        }
      }
    }
  }

 private:
  static constexpr int64_t kAtATime = 64;
  static constexpr int64_t kAhead = 8;  // neighbours whose places are fetched ahead

  // Keys of the first trials are worked out once; to make one takes as long as to draw a word.
  static constexpr int64_t kTabledSteps = 512;
  static constexpr uint32_t kTabledTrials = 4;
  struct TrialKeys {
    uint64_t step;
    uint64_t accept;
  };

  // What a walk waits for: its node's row pointers, a drawn neighbour, or the edge from the node
  // before to that neighbour.
  enum class State { kRow, kNeighbor, kEdge };

  struct Lane {
    int64_t walk;
    int64_t step;
    State state;
    uint32_t trial;
    bool taken_if_near;
    int64_t node;
    RowSpan row;
    int64_t before;
    RowSpan row_before;
    int64_t edge;
    int64_t neighbor;
  };

  // Begins the next walk that has a step to take. Returns false if there is none.
  bool refill(Lane& lane) {
    do {
      if (next_ == end_) {
        end_ = waiting_.take(kAtATime, next_);
        if (end_ == 0) {
          next_ = 0;
          return false;
        }
        end_ += next_;
      }
      lane.walk = next_++;
      lane.step = 0;
      lane.node = waiting_.start(lane.walk);
      record_.begin(lane.walk, lane.node);
    } while (!arrive(lane));
    return true;
  }

  // The functions below return false once the walk has ended.

  bool arrive(Lane& lane) {
    if (lane.step == plan_.length()) return false;
    if (plan_.ends(lane.walk, lane.step)) return end(lane);
    plan_.prefetch_row(lane.step, lane.node);
    lane.state = State::kRow;
    return true;
  }

  bool end(const Lane& lane) {
    record_.end(lane.walk, lane.step);
    return false;
  }

  bool advance(Lane& lane) {
    switch (lane.state) {
      case State::kRow:
        lane.row = span_of(graph(lane), lane.node);
        if (lane.row.degree() == 0) return end(lane);
        lane.trial = 0;
        return draw(lane);
      case State::kNeighbor:
        lane.neighbor = graph(lane).indices[lane.edge];
        return lane.step == 0 ? take(lane) : judge(lane);
      default:
        return plan_.tables->holds(lane.row_before, lane.neighbor) == lane.taken_if_near
                   ? take(lane)
                   : refuse(lane);
    }
  }

  bool draw(Lane& lane) {
    const uint64_t key = keys(lane).step;
    lane.edge = lane.row.begin +
                walk_pick(key, graph(lane).original_id(lane.row.row), lane.walk, lane.row.degree());
    prefetch_entry(graph(lane).indices, lane.edge);
    lane.state = State::kNeighbor;
    return true;
  }

  bool judge(Lane& lane) {
    const WalkVerdict verdict = judge_neighbor(plan_.bias, walk_word(keys(lane).accept, lane.walk),
                                               lane.neighbor == lane.before);
    if (verdict == WalkVerdict::kTaken) return take(lane);
    if (verdict == WalkVerdict::kRefused) return refuse(lane);
    lane.taken_if_near = verdict == WalkVerdict::kTakenIfNear;
    plan_.tables->prefetch(lane.row_before, lane.neighbor);
    lane.state = State::kEdge;
    return true;
  }

  TrialKeys keys(const Lane& lane) const {
    if (lane.step < kTabledSteps && lane.trial < kTabledTrials) {
      return keys_[static_cast<std::size_t>(lane.step * kTabledTrials + lane.trial)];
    }
    const auto step = static_cast<uint32_t>(lane.step);
    return {plan_.keys.step(step, lane.trial), plan_.keys.accept(step, lane.trial)};
  }

  bool refuse(Lane& lane) {
    if (++lane.trial < kWalkTrials) return draw(lane);
    draw_from_whole_row(lane);
    return take(lane);
  }

  bool take(Lane& lane) {
    record_.move(lane.walk, lane.step, lane.neighbor, graph(lane).first_edge + lane.edge);
    lane.before = lane.node;
    lane.row_before = lane.row;
    lane.node = lane.neighbor;
    ++lane.step;
    return arrive(lane);
  }

  // Draws among all neighbours, by running sums of their chances.
  void draw_from_whole_row(Lane& lane) {
    const RowTables& tables = *plan_.tables;
    entries_.clear();
    // For the neighbours that may be other than far, if they are few: they need be sorted then.
    if (tables.has_places(lane.row) && 8 * lane.row_before.degree() < lane.row.degree()) {
      note_others(lane);
    } else {
      note_all(lane);
    }
    const uint64_t far = plan_.bias.far;
    uint64_t sum = static_cast<uint64_t>(lane.row.degree()) * far;
    for (const Entry& entry : entries_) sum += entry.chance - far;
    const uint64_t key = plan_.keys.accept(static_cast<uint32_t>(lane.step), kWalkTrials);
    lane.edge = lane.row.begin + place_at(bounded64(walk_word64(key, lane.walk), sum));
    lane.neighbor = graph(lane).indices[lane.edge];
  }

  // A neighbour that is not far: its place in the row, and its chance.
  struct Entry {
    int64_t place;
    uint64_t chance;
  };

  // The place whose chances, added to those of all places before, are above `drawn` first.
  int64_t place_at(uint64_t drawn) const {
    const uint64_t far = plan_.bias.far;
    int64_t next = 0;
    for (const Entry& entry : entries_) {
      const uint64_t between = static_cast<uint64_t>(entry.place - next) * far;
      if (drawn < between) break;
      if (drawn - between < entry.chance) return entry.place;
      drawn -= between + entry.chance;
      next = entry.place + 1;
    }
    return next + static_cast<int64_t>(drawn / far);
  }

  void note_all(const Lane& lane) {
    const bool asks = plan_.bias.asks_for_edges();
    const bool fetches = asks && RowTables::has_places(lane.row_before);
    const AnyInts& columns = graph(lane).indices;
    for (int64_t place = 0; place < lane.row.degree(); ++place) {
      const int64_t edge = lane.row.begin + place;
      const int64_t neighbor = columns[edge];
      if (fetches && edge + kAhead < lane.row.end) {
        plan_.tables->prefetch(lane.row_before, columns[edge + kAhead]);
      }
      if (neighbor == lane.before) {
        entries_.push_back({place, plan_.bias.back});
      } else if (asks && plan_.tables->holds(lane.row_before, neighbor)) {
        entries_.push_back({place, plan_.bias.near});
      }
    }
  }

  void note_others(const Lane& lane) {
    const RowTables& tables = *plan_.tables;
    const auto note = [&](int64_t neighbor, uint64_t chance) {
      tables.each_place(lane.row, neighbor,
                        [&](int64_t place) { entries_.push_back({place, chance}); });
    };
    note(lane.before, plan_.bias.back);
    const AnyInts& columns = graph(lane).indices;
    const RowSpan& row = lane.row_before;
    const int64_t end = plan_.bias.asks_for_edges() ? row.end : row.begin;
    for (int64_t edge = row.begin; edge < end; ++edge) {
      if (edge + kAhead < end) tables.prefetch(lane.row, columns[edge + kAhead]);
      if (columns[edge] != lane.before) note(columns[edge], plan_.bias.near);
    }
    // The node before may have a neighbour twice.
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.place < b.place; });
    const auto same = [](const Entry& a, const Entry& b) { return a.place == b.place; };
    entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
  }

  const DeviceCsr& graph(const Lane& lane) const { return plan_.rows_of(lane.step); }

  const WalkPlan& plan_;
  const WalkRecord& record_;
  WaitingWalks& waiting_;
  int64_t next_ = 0;  // of the walks that are this thread's
  int64_t end_ = 0;
  std::array<Lane, kAtATime> lanes_;
  std::vector<TrialKeys> keys_;
  std::vector<Entry> entries_;  // ascending by place
};

}  // namespace khop::cpu
