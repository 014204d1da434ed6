#include "khop/cpu/exclude.hpp"

#include <algorithm>
#include <tuple>

namespace khop::cpu {
namespace {

bool by_row_and_neighbor(const PairSet::Pair& a, const PairSet::Pair& b) {
  return std::tie(a.row, a.neighbor) < std::tie(b.row, b.neighbor);
}

}  // namespace

bool PairSet::Span::contains(int64_t neighbor) const {
  const Pair* found = std::lower_bound(
      begin, end, neighbor, [](const Pair& pair, int64_t id) { return pair.neighbor < id; });
  return found != end && found->neighbor == neighbor;
}

void PairSet::clear() {
  for (const Pair& pair : pairs_) maybe_[bit(pair.row)] = false;
  pairs_.clear();
}

void PairSet::add(const int64_t* rows, const int64_t* neighbors, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    pairs_.push_back({rows[i], neighbors[i]});
    maybe_[bit(rows[i])] = true;
  }
  std::sort(pairs_.begin(), pairs_.end(), by_row_and_neighbor);
}

PairSet::Span PairSet::search(int64_t row) const {
  const auto first = std::lower_bound(pairs_.begin(), pairs_.end(), row,
                                      [](const Pair& pair, int64_t id) { return pair.row < id; });
  const auto last = std::upper_bound(first, pairs_.end(), row,
                                     [](int64_t id, const Pair& pair) { return id < pair.row; });
  const Pair* data = pairs_.data();
  return {data + (first - pairs_.begin()), data + (last - pairs_.begin())};
}

}  // namespace khop::cpu
