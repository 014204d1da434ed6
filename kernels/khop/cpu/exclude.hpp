// Pairs of nodes whose edges a batch must not draw: the seed edges of a link batch.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/core/node_table.hpp"

namespace khop::cpu {

class PairSet {
 public:
  struct Pair {
    int64_t row;
    int64_t neighbor;
  };

  // Neighbours that one row must not draw, ascending; they may repeat.
  struct Span {
    const Pair* begin;
    const Pair* end;
    bool empty() const { return begin == end; }
    int64_t size() const { return end - begin; }
    bool contains(int64_t neighbor) const;
  };

  void clear();
  void add(const int64_t* rows, const int64_t* neighbors, int64_t count);
  bool empty() const { return pairs_.empty(); }

  Span of(int64_t row) const { return maybe_[bit(row)] ? search(row) : Span{nullptr, nullptr}; }

 private:
  // Most rows of a batch have no pair: one look at a few cache lines shows it.
  static constexpr int kFilterBits = 15;
  static std::size_t bit(int64_t row) {
    return slot_index(hash_id(static_cast<uint64_t>(row)), kFilterBits);
  }
  Span search(int64_t row) const;

  std::vector<Pair> pairs_;  // by row, then neighbour
  std::vector<bool> maybe_ = std::vector<bool>(std::size_t{1} << kFilterBits);
};

}  // namespace khop::cpu
