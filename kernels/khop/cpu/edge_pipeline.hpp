// Pipeline of a hop's edges, from drawn positions to numbered neighbours.
//
// An edge touches two places at random: its column, and its neighbour's slot in the node table.
// Both are prefetched some edges ahead, and every step of the loop handles one edge in each of
// three states: prefetch the column of the newest, read an older one and prefetch its slot, number
// a still older one. So memory has as many requests as a core can have under way all the time, and
// the computation of one edge hides the waiting of others. (In stages of whole blocks, where each
// waits for its own burst of requests, a batch took 2.4 times as long.)
#pragma once

#include <algorithm>
#include <cstdint>

#include "khop/cpu/buffer.hpp"
#include "khop/cpu/node_table.hpp"
#include "khop/cpu/prefetch.hpp"
#include "khop/cpu/rows.hpp"

namespace khop::cpu {

// Where edges end up: numbers of sources, and if wanted their positions in the whole graph.
struct EdgeSink {
  Buffer<int32_t>& sources;
  Buffer<int64_t>* edges;
};

// The neighbours of a graph, by the positions that are drawn.
template <class Column>
struct Columns {
  using Col = Column;
  const Col* columns;
  int64_t first_edge;

  const Col* at(int64_t position) const { return columns + position; }
  int64_t edge(int64_t position) const { return first_edge + position; }
};

// `Columns` has type Col, at(position), and edge(position): its position in the whole graph.
template <class Columns, bool kDisjoint, bool kNarrow>
class EdgePipeline {
  using Col = typename Columns::Col;

 public:
  EdgePipeline(const Columns& columns, NodeSet& sources, const EdgeSink& replace_root)
      : columns_(columns),
        sources_(sources),
        sink_(replace_root),
        first_(replace_root.sources.size()) {}
  EdgePipeline(const EdgePipeline&) = delete;
  EdgePipeline& operator=(const EdgePipeline&) = delete;

  // What is drawn is appended here, then `advance` is called.
  Buffer<int64_t>& positions() { return positions_; }

  // Takes in what was drawn from `rows`: counts[i] edges of the i-th.
  void advance(const RowSet& rows, int64_t num_rows, const int32_t* counts) {
    if constexpr (kDisjoint) {
      for (int64_t i = 0; i < num_rows; ++i) {
        std::fill_n(trees_.extend(counts[i]), counts[i], rows.trees[i]);
      }
    }
    keys_.resize(positions_.size());
    sink_.sources.resize(first_ + positions_.size());
    move<kColumnsAhead, kSlotsAhead>(positions_.size());
    if (numbered_ >= kDoneAtOnce) write_out();
  }

  void finish() {
    move<0, 0>(positions_.size());
    write_out();
  }

 private:
  static constexpr int64_t kColumnsAhead = 128;
  static constexpr int64_t kSlotsAhead = 64;
  // Done edges are dropped when there are this many: buffers stay in the nearest caches.
  static constexpr int64_t kDoneAtOnce = 1024;

  // Asks for all columns up to `end`, reads all but the last `kBehind` of them, numbers all but the
  // last `kFurther` of these.
  template <int64_t kBehind, int64_t kFurther>
  void move(int64_t end) {
    sources_.reserve(end - numbered_);
    NodeSet::Inserter<kNarrow> inserter(sources_);
    const int64_t* const positions = positions_.data();
    int64_t* const keys = keys_.data();
    int32_t* const numbers = sink_.sources.data() + first_;
    const auto ask = [&](int64_t edge) { prefetch_scattered_line(columns_.at(positions[edge])); };
    const auto read = [&](int64_t edge) {
      keys[edge] = key(edge, *columns_.at(positions[edge]));
      inserter.prefetch(keys[edge]);
    };
    const auto number = [&](int64_t edge) { numbers[edge] = inserter.number(keys[edge]); };
    int64_t next = asked_;
    // Until the distances are as they should be; from then on one count gives all three places.
    for (; next < end && next < numbered_ + kBehind + kFurther; ++next) {
      ask(next);
      if (next >= read_ + kBehind) read(read_++);
    }
    if (next < end) {
      for (; next < end; ++next) {
        ask(next);
        read(next - kBehind);
        number(next - kBehind - kFurther);
      }
      read_ = end - kBehind;
      numbered_ = read_ - kFurther;
    }
    asked_ = end;
    for (; read_ < end - kBehind; ++read_) read(read_);
    for (; numbered_ < read_ - kFurther; ++numbered_) number(numbered_);
  }

  int64_t key(int64_t edge, Col column) const {
    if constexpr (!kDisjoint) return static_cast<int64_t>(column);
    // Of an id that does not exist the key is another tree's.
    if (!sources_.holds(static_cast<int64_t>(column))) sources_.check_ids(&column, 1);
    return sources_.key(trees_[edge], static_cast<int64_t>(column));
  }

  // Edges that are done leave the buffers.
  void write_out() {
    if (sink_.edges != nullptr) {
      int64_t* out = sink_.edges->extend(numbered_);
      for (int64_t j = 0; j < numbered_; ++j) out[j] = columns_.edge(positions_[j]);
    }
    positions_.drop_front(numbered_);
    keys_.drop_front(numbered_);
    if constexpr (kDisjoint) trees_.drop_front(numbered_);
    first_ += numbered_;
    asked_ -= numbered_;
    read_ -= numbered_;
    numbered_ = 0;
  }

  const Columns columns_;
  NodeSet& sources_;
  const EdgeSink sink_;
  int64_t first_;  // place in the replace_root of the first edge in the buffers
  Buffer<int64_t> positions_;
  Buffer<int64_t> keys_;
  Buffer<int32_t> trees_;
  int64_t asked_ = 0;
  int64_t read_ = 0;
  int64_t numbered_ = 0;
};

}  // namespace khop::cpu
