// The edges of one edge type that a batch must not draw.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "khop/device/bounds.hpp"
#include "khop/device/candidates.hpp"
#include "khop/device/steps/exclude.hpp"
#include "khop/device/steps/memory.hpp"
#include "khop/device/steps/scan.hpp"

namespace khop::device {

template <class Backend>
class ExcludedEdges {
 public:
  explicit ExcludedEdges(Backend& backend)
      : work_(backend), keys_(backend), ranks_(backend), list_(backend) {}

  void clear() {
    pairs_.clear();
    num_links_ = 0;
  }
  bool empty() const { return pairs_.empty() && num_links_ == 0; }
  // No row of pairs has more edges than there is room for.
  bool is_certain() const { return is_certain_; }

  void add(const int64_t* rows, const int64_t* neighbors, int64_t count) {
    for (int64_t i = 0; i < count; ++i) pairs_.emplace_back(rows[i], neighbors[i]);
  }

  // In place of pairs: all links of a batch, whose ends the device has.
  void take_links(int64_t count, bool rows_are_sources) {
    num_links_ = count;
    rows_are_sources_ = rows_are_sources;
  }

  // The words that the device needs to find them in a graph. Pairs whose row the graph does not
  // hold are no edges.
  const std::vector<int64_t>& lay_out(const DeviceCsr& graph) {
    words_.clear();
    num_rows_ = num_links_;
    if (num_links_ > 0) return words_;
    std::sort(pairs_.begin(), pairs_.end());
    std::vector<int64_t> firsts, neighbors;
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
    const int64_t most = product(num_rows_, max_degree);
    room_ = std::max<int64_t>(1, learned.entries(most, learned.candidates));
    is_certain_ = room_ >= most;
    work_.reserve(num_rows_, room_);
  }

  // Finds them, from their words on the device.
  void find(Backend& backend, const DeviceCsr& graph, const int64_t* words, DeviceError* error,
            Needs* needs) {
    find(backend, graph, {words, words + num_rows_, words + 2 * num_rows_ + 1}, Count{num_rows_},
         words + static_cast<int64_t>(words_.size()) - 1, error, needs);
  }

  // The same from sources and destinations of links. There are so many nodes of either type.
  void find_links(Backend& backend, const DeviceCsr& graph, const int64_t* const* ends,
                  const int64_t* num_nodes, DeviceError* error, Needs* needs) {
    const int row_side = rows_are_sources_ ? 0 : 1;
    const int bits = bits_for(num_nodes[1 - row_side]);
    const int all_bits = bits + bits_for(num_nodes[row_side]);
    if (all_bits > 64) throw std::length_error("links of so many nodes cannot be excluded");
    const Count count{num_links_};
    keys_.reserve(num_links_);
    ranks_.reserve(num_links_ + 1);
    list_.reserve(3 * num_links_ + 2);
    const SortPairs sorted = keys_.pairs();
    int64_t* const rows = list_.data();
    int64_t* const firsts = rows + num_links_;
    int64_t* const neighbors = firsts + num_links_ + 1;
    int64_t* const num_rows = neighbors + num_links_;
    backend.run(count,
                LinkPairs{ends[row_side], ends[1 - row_side], bits, sorted.keys, sorted.values});
    backend.sort(num_links_, sorted, all_bits);
    backend.run(count, MarkRows{sorted.keys, bits, ranks_.data()});
    sum(backend, count, CountOf64{ranks_.data()}, ranks_.data());
    backend.run(count, ListPairs{sorted.keys, ranks_.data(), bits, num_links_, rows, firsts,
                                 neighbors, num_rows});
    find(backend, graph, {rows, firsts, neighbors}, Count{num_links_, num_rows}, num_rows, error,
         needs);
  }

  ExcludedList list() const {
    if (empty()) return {nullptr, nullptr};
    return {work_.kept(), work_.num_kept()};
  }

 private:
  void find(Backend& backend, const DeviceCsr& graph, const PairList& pairs, Count rows,
            const int64_t* num_rows, DeviceError* error, Needs* needs) {
    backend.run(rows, SpanPairs{graph, pairs, error, work_.begins(), work_.counts()});
    const Count found = work_.span(backend, rows);
    const Candidates candidates = work_.candidates(num_rows);
    work_.keep(backend, found, IsExcluded{graph, pairs, candidates}, candidates);
    backend.run(Count{1}, EndExclusion{found.total, room_, needs});
  }

  std::vector<std::pair<int64_t, int64_t>> pairs_;
  // Rows, where each row's neighbours begin, the neighbours, and the number of rows.
  std::vector<int64_t> words_;
  int64_t num_rows_ = 0;
  int64_t room_ = 0;
  bool is_certain_ = false;
  CandidateEdges<Backend> work_;

  int64_t num_links_ = 0;
  bool rows_are_sources_ = false;
  SortMemory<Backend> keys_;
  DeviceArray<Backend, int64_t> ranks_;
  DeviceArray<Backend, int64_t> list_;  // of pairs of links, as in words_
};

}  // namespace khop::device
