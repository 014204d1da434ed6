// The edges of one edge type that a batch must not draw.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "bounds.hpp"
#include "candidates.hpp"
#include "khop/parallel/exclude.hpp"

namespace khop {

template <class Backend>
class ExcludedEdges {
 public:
  explicit ExcludedEdges(Backend& backend) : list_(backend), work_(backend) {}

  void clear() { pairs_.clear(); }
  bool empty() const { return pairs_.empty(); }

  void add(const int64_t* rows, const int64_t* neighbors, int64_t count) {
    for (int64_t i = 0; i < count; ++i) pairs_.emplace_back(rows[i], neighbors[i]);
  }

  // Finds them in a graph. Pairs whose row the graph does not hold are no edges.
  template <class Ptr, class Col>
  void find(Backend& backend, const CsrView<Ptr, Col>& graph, int64_t max_degree,
            const Room& learned, Fault* fault, parallel::Needs* needs) {
    const int64_t num_rows = upload_pairs(graph.first_row, graph.num_rows);
    const int64_t room =
        std::max<int64_t>(1, learned.entries(product(num_rows, max_degree), learned.candidates));
    const Count rows{num_rows};
    work_.reserve(num_rows, room);
    const int64_t* const base = list_.data();
    const parallel::PairList pairs{base, base + num_rows, base + 2 * num_rows + 1};
    backend.run(rows,
                parallel::SpanPairs<Ptr, Col>{graph, pairs, fault, work_.begins(), work_.counts()});
    const Count found = work_.span(backend, rows);
    const parallel::Candidates candidates = work_.candidates(num_rows_on_device());
    work_.keep(backend, found, parallel::IsExcluded<Ptr, Col>{graph, pairs, candidates},
               candidates);
    backend.run(Count{1}, parallel::EndExclusion{found.total, room, needs, fault});
  }

  parallel::HoleList list() const {
    if (pairs_.empty()) return {nullptr, nullptr};
    return {work_.kept(), work_.num_kept()};
  }

 private:
  // One array: rows, where each row's neighbours begin, the neighbours, and the number of rows.
  int64_t upload_pairs(int64_t first_row, int64_t num_rows) {
    std::sort(pairs_.begin(), pairs_.end());
    std::vector<int64_t> rows, firsts, neighbors;
    for (const auto& [row, neighbor] : pairs_) {
      if (row < first_row || row - first_row >= num_rows) continue;
      if (rows.empty() || rows.back() != row) {
        rows.push_back(row);
        firsts.push_back(static_cast<int64_t>(neighbors.size()));
      }
      neighbors.push_back(neighbor);
    }
    firsts.push_back(static_cast<int64_t>(neighbors.size()));
    const auto count = static_cast<int64_t>(rows.size());
    rows.insert(rows.end(), firsts.begin(), firsts.end());
    rows.insert(rows.end(), neighbors.begin(), neighbors.end());
    rows.push_back(count);
    size_ = static_cast<int64_t>(rows.size());
    list_.reserve(size_);
    list_.upload(rows.data(), size_);
    return count;
  }
  const int64_t* num_rows_on_device() const { return list_.data() + size_ - 1; }

  std::vector<std::pair<int64_t, int64_t>> pairs_;
  DeviceArray<Backend, int64_t> list_;
  int64_t size_ = 0;
  CandidateEdges<Backend> work_;
};

}  // namespace khop
