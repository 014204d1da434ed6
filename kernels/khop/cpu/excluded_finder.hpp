// Search of a row for the edges that a batch excludes: the row is read once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "khop/core/csr.hpp"
#include "khop/core/eligible.hpp"
#include "khop/cpu/exclude.hpp"
#include "khop/cpu/id_filter.hpp"
#include "khop/cpu/stop.hpp"

namespace khop::cpu {

template <class Ptr, class Col>
class ExcludedFinder {
 public:
  explicit ExcludedFinder(const CsrView<Ptr, Col>& graph, const StopFlag* stop)
      : graph_(graph), stop_(stop) {}

  // Finds the excluded edges of a row, which `positions` returns until the next call.
  void find(const Row& row, const PairSet::Span& excluded) {
    found_.clear();
    if (excluded.empty()) return;
    constexpr std::ptrdiff_t kFew = 8;
    if (excluded.end - excluded.begin > kFew) {
      find_many(row, excluded);
    } else {
      find_few(row, excluded);
    }
  }

  ExcludedPositions positions() const {
    return {found_.data(), static_cast<int64_t>(found_.size())};
  }

 private:
  static constexpr int64_t kStretch = 4096;  // entries between two looks at the flag

  // Most neighbours are told from the excluded ones by a bit; the others are searched for.
  void find_many(const Row& row, const PairSet::Span& excluded) {
    filter_.reset(excluded.end - excluded.begin);
    for (const PairSet::Pair* pair = excluded.begin; pair != excluded.end; ++pair) {
      filter_.add(pair->neighbor);
    }
    for (int64_t first = row.begin; first < row.end; first += kStretch) {
      check_stop(stop_);
      const int64_t last = std::min(first + kStretch, row.end);
      for (int64_t e = first; e < last; ++e) {
        const auto id = static_cast<int64_t>(graph_.indices[e]);
        if (filter_.may_hold(id) != 0 && excluded.contains(id)) found_.push_back(e);
      }
    }
  }

  // Block by block, without a branch an entry, so that entries are compared many at a time.
  void find_few(const Row& row, const PairSet::Span& excluded) {
    constexpr int64_t kBlock = 64;
    for (int64_t first = row.begin; first < row.end; first += kBlock) {
      if ((first - row.begin) % kStretch == 0) check_stop(stop_);
      const int64_t last = std::min(first + kBlock, row.end);
      unsigned found = 0;
      for (const PairSet::Pair* pair = excluded.begin; pair != excluded.end; ++pair) {
        const Col wanted = static_cast<Col>(pair->neighbor);
        for (int64_t e = first; e < last; ++e) {
          found |= static_cast<unsigned>(graph_.indices[e] == wanted);
        }
      }
      if (found == 0) continue;
      for (int64_t e = first; e < last; ++e) {
        if (excluded.contains(static_cast<int64_t>(graph_.indices[e]))) found_.push_back(e);
      }
    }
  }

  const CsrView<Ptr, Col>& graph_;
  const StopFlag* stop_;
  IdFilter filter_;
  std::vector<int64_t> found_;  // ascending
};

}  // namespace khop::cpu
