// Membership of edges: many threads read a long row, each a share of it.
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"
#include "khop/core/search.hpp"
#include "khop/device/steps/backend.hpp"
#include "khop/device/steps/memory.hpp"
#include "khop/device/steps/scan.hpp"

namespace khop::device {

// Entries of a row that one thread reads, at most.
constexpr int64_t kEntriesAShare = 16;

// Question i: does node rows[j] have the neighbour neighbors[j], for j = which[i]?
struct EdgeQuestions {
  const int64_t* rows;
  const int64_t* neighbors;
  Count count;
  const int64_t* which = nullptr;  // null: i itself

  KHOP_HD int64_t at(int64_t i) const { return which == nullptr ? i : which[i]; }
  KHOP_HD int64_t row(int64_t i) const { return rows[at(i)]; }
  KHOP_HD int64_t neighbor(int64_t i) const { return neighbors[at(i)]; }
};

// Into how many shares the row of each question is split; none if no entry can be what is sought.
template <class Ptr, class Col>
struct CountShares {
  CsrView<Ptr, Col> graph;
  EdgeQuestions questions;
  int64_t* shares;
  uint64_t* missing;
  uint64_t* first_bad;

  KHOP_HD void operator()(int64_t i) const {
    shares[i] = 0;
    missing[i] = 1;
    const int64_t row = graph.row_of(questions.row(i));
    if (row < 0 || row >= graph.num_rows) {
      atomic_min(first_bad, static_cast<uint64_t>(questions.at(i)));
      return;
    }
    const auto begin = static_cast<int64_t>(graph.indptr[row]);
    const auto end = static_cast<int64_t>(graph.indptr[row + 1]);
    if (!graph.row_is_sound(begin, end)) {
      atomic_min(first_bad, static_cast<uint64_t>(questions.at(i)));
      return;
    }
    const int64_t wanted = questions.neighbor(i);
    if (wanted < 0 || wanted != static_cast<int64_t>(static_cast<Col>(wanted))) return;
    shares[i] = (end - begin + kEntriesAShare - 1) / kEntriesAShare;
  }
};

// Reads a share: every n-th entry of a row of n shares, so that neighbouring threads read
// neighbouring entries.
template <class Ptr, class Col>
struct ReadShares {
  CsrView<Ptr, Col> graph;
  EdgeQuestions questions;
  const int64_t* share_sums;
  uint64_t* missing;

  KHOP_HD void operator()(int64_t item) const {
    const int64_t i = owner_of(share_sums, questions.count.value(), item);
    if (atomic_load(&missing[i]) == 0) return;  // another thread has found it: the same answer
    const int64_t row = graph.row_of(questions.row(i));
    const auto begin = static_cast<int64_t>(graph.indptr[row]);
    const auto end = static_cast<int64_t>(graph.indptr[row + 1]);
    const int64_t stride = share_sums[i + 1] - share_sums[i];
    const auto wanted = static_cast<Col>(questions.neighbor(i));
    bool found = false;
    for (int64_t e = begin + (item - share_sums[i]); e < end; e += stride) {
      found |= graph.indices[e] == wanted;
    }
    if (found) atomic_min(&missing[i], 0);
  }
};

// Memory to find edges with, for as many questions at a time as there is room for.
template <class Backend>
class EdgeFinder {
 public:
  explicit EdgeFinder(Backend& backend)
      : backend_(backend), shares_(backend), sums_(backend), missing_(backend) {}

  void reserve(int64_t most) {
    shares_.reserve(most);
    sums_.reserve(most + 1);
    missing_.reserve(most);
  }

  // missing()[i] is then 0 if the edge that question i asks for exists, else 1. Lowers `first_bad`
  // to the first which[i] whose node has no row, or a corrupt one. No row holds more than
  // `longest` edges. Does not wait.
  template <class Ptr, class Col>
  void find(const CsrView<Ptr, Col>& graph, const EdgeQuestions& questions, int64_t longest,
            uint64_t* first_bad) {
    const int64_t most = questions.count.most;
    backend_.run(questions.count, CountShares<Ptr, Col>{graph, questions, shares_.data(),
                                                        missing_.data(), first_bad});
    sum(backend_, questions.count, CountOf64{shares_.data()}, sums_.data());
    backend_.run(Count{most_shares(most, longest), sums_.data() + most},
                 ReadShares<Ptr, Col>{graph, questions, sums_.data(), missing_.data()});
  }

  const uint64_t* missing() const { return missing_.data(); }

 private:
  // Far above what there is, for most rows are short. Only a GPU's grid grows with it, and backends
  // cap grids; memory and sums are of the size of the questions.
  static int64_t most_shares(int64_t questions, int64_t longest) {
    const int64_t shares = (longest + kEntriesAShare - 1) / kEntriesAShare;
    constexpr int64_t kMost = int64_t{1} << 62;
    return shares > 0 && questions > kMost / shares ? kMost : questions * shares;
  }

  Backend& backend_;
  DeviceArray<Backend, int64_t> shares_;
  DeviceArray<Backend, int64_t> sums_;
  DeviceArray<Backend, uint64_t> missing_;
};

}  // namespace khop::device
