// The edges of one edge type that a batch must not draw.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "khop/device/bounds.hpp"
#include "khop/device/candidates.hpp"
#include "khop/device/steps/exclude.hpp"

namespace khop::device {

template <class Backend>
class ExcludedEdges {
 public:
  explicit ExcludedEdges(Backend& backend) : work_(backend) {}

  void clear() { pairs_.clear(); }
  bool empty() const { return pairs_.empty(); }

  void add(const int64_t* rows, const int64_t* neighbors, int64_t count) {
    for (int64_t i = 0; i < count; ++i) pairs_.emplace_back(rows[i], neighbors[i]);
  }

  // The words that the device needs to find them in a graph. Pairs whose row the graph does not
  // hold are no edges.
  const std::vector<int64_t>& lay_out(const DeviceCsr& graph) {
    std::sort(pairs_.begin(), pairs_.end());
    std::vector<int64_t> firsts, neighbors;
    words_.clear();
    for (const auto& [row, neighbor] : pairs_) {
      if (row < graph.first_row || row - graph.first_row >= graph.num_rows) continue;
      if (words_.empty() || words_.back() != row) {
        words_.push_back(row);
        firsts.push_back(static_cast<int64_t>(neighbors.size()));
      }
      neighbors.push_back(neighbor);
    }
    firsts.push_back(static_cast<int64_t>(neighbors.size()));
    num_rows_ = static_cast<int64_t>(words_.size());
    words_.insert(words_.end(), firsts.begin(), firsts.end());
    words_.insert(words_.end(), neighbors.begin(), neighbors.end());
    words_.push_back(num_rows_);
    return words_;
  }

  const std::vector<int64_t>& words() const { return words_; }

  void reserve(int64_t max_degree, const Room& learned) {
    room_ =
        std::max<int64_t>(1, learned.entries(product(num_rows_, max_degree), learned.candidates));
    work_.reserve(num_rows_, room_);
  }

  // Finds them, from their words on the device.
  void find(Backend& backend, const DeviceCsr& graph, const int64_t* words, DeviceError* error,
            Needs* needs) {
    const Count rows{num_rows_};
    const PairList pairs{words, words + num_rows_, words + 2 * num_rows_ + 1};
    backend.run(rows, SpanPairs{graph, pairs, error, work_.begins(), work_.counts()});
    const Count found = work_.span(backend, rows);
    const Candidates candidates = work_.candidates(words + static_cast<int64_t>(words_.size()) - 1);
    work_.keep(backend, found, IsExcluded{graph, pairs, candidates}, candidates);
    backend.run(Count{1}, EndExclusion{found.total, room_, needs});
  }

  ExcludedList list() const {
    if (pairs_.empty()) return {nullptr, nullptr};
    return {work_.kept(), work_.num_kept()};
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> pairs_;
  // Rows, where each row's neighbours begin, the neighbours, and the number of rows.
  std::vector<int64_t> words_;
  int64_t num_rows_ = 0;
  int64_t room_ = 0;
  CandidateEdges<Backend> work_;
};

}  // namespace khop::device
