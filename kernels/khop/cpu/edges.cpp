#include "khop/cpu/edges.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "khop/core/node_table.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/prefetch.hpp"
#include "khop/cpu/row_errors.hpp"
#include "khop/cpu/row_scan.hpp"
#include "khop/cpu/rows.hpp"

namespace khop::cpu {
namespace {

// Row pointers are fetched this many look-ups ahead, the first columns half as many.
constexpr int64_t kAhead = 16;

// Rows from this length on are read once for all that is asked of them...
constexpr int64_t kLongRow = 512;
// ...if that is so much: comparing vectors is some ten times faster than probing a table.
constexpr std::ptrdiff_t kManyQuestions = 12;

// Ids that are looked for in one row, and which have been found.
class WantedIds {
 public:
  void reset(int64_t count) {
    bits_ = 6;
    while ((int64_t{1} << bits_) < 4 * count) ++bits_;
    slots_.clear();
    slots_.resize(int64_t{1} << bits_);
    std::fill_n(slots_.data(), slots_.size(), Slot{-1, false});
    missing_ = 0;
  }
  void add(int64_t id) {
    Slot& slot = find(id);
    missing_ += slot.id == -1;
    slot.id = id;
  }
  // Returns true once all have been found.
  bool note(int64_t id) {
    Slot& slot = find(id);
    if (slot.id == -1 || slot.found) return false;
    slot.found = true;
    return --missing_ == 0;
  }
  bool found(int64_t id) { return find(id).found; }

 private:
  struct Slot {
    int64_t id;
    bool found;
  };
  Slot& find(int64_t id) {
    const int64_t mask = slots_.size() - 1;
    auto slot = static_cast<int64_t>(slot_index(hash_id(static_cast<uint64_t>(id)), bits_));
    while (slots_[slot].id != -1 && slots_[slot].id != id) slot = (slot + 1) & mask;
    return slots_[slot];
  }

  int bits_ = 6;
  int64_t missing_ = 0;
  Buffer<Slot> slots_;
};

template <class Ptr, class Col>
class EdgeFinder {
 public:
  EdgeFinder(const CsrView<Ptr, Col>& graph, const int64_t* rows, const int64_t* neighbors,
             int64_t count, bool* exists)
      : graph_(graph), rows_(rows), neighbors_(neighbors), count_(count), exists_(exists) {}

  void find_all() {
    for (int64_t i = 0; i < count_; ++i) {
      prefetch(i);
      const auto [begin, end] = row_of(i);
      if (neighbors_[i] < 0 || neighbors_[i] > std::numeric_limits<Col>::max()) {
        exists_[i] = false;
      } else if (end - begin < kLongRow) {
        exists_[i] = scan(begin, end, i);
      } else {
        long_rows_.emplace_back(rows_[i], i);
      }
    }
    std::sort(long_rows_.begin(), long_rows_.end());
    for (auto first = long_rows_.begin(); first != long_rows_.end();) {
      const auto last = std::find_if(first, long_rows_.end(), [first](const auto& question) {
        return question.first != first->first;
      });
      const auto [begin, end] = row_of(first->second);
      if (last - first < kManyQuestions) {
        for (auto q = first; q != last; ++q) exists_[q->second] = scan(begin, end, q->second);
      } else {
        read_once(begin, end, first, last);
      }
      first = last;
    }
  }

 private:
  using Questions = std::vector<std::pair<int64_t, int64_t>>;  // (row, place)

  std::pair<int64_t, int64_t> row_of(int64_t i) const {
    const int64_t row = graph_.row_of(rows_[i]);
    if (row < 0 || row >= graph_.num_rows) {
      throw_no_such_row(rows_[i], graph_.first_row, graph_.num_rows);
    }
    const auto begin = static_cast<int64_t>(graph_.indptr[row]);
    const auto end = static_cast<int64_t>(graph_.indptr[row + 1]);
    if (!graph_.row_is_sound(begin, end)) {
      throw_corrupt_row(row, begin, end, graph_.num_edges);
    }
    return {begin, end};
  }

  bool scan(int64_t begin, int64_t end, int64_t i) const {
    return row_holds(graph_.indices + begin, end - begin, static_cast<Col>(neighbors_[i]));
  }

  void read_once(int64_t begin, int64_t end, Questions::iterator first, Questions::iterator last) {
    wanted_.reset(last - first);
    for (auto q = first; q != last; ++q) wanted_.add(neighbors_[q->second]);
    for (int64_t j = begin; j < end; ++j) {
      if (wanted_.note(static_cast<int64_t>(graph_.indices[j]))) break;
    }
    for (auto q = first; q != last; ++q) exists_[q->second] = wanted_.found(neighbors_[q->second]);
  }

  void prefetch(int64_t i) const {
    const auto row_at = [this](int64_t j) {
      const int64_t row = j < count_ ? graph_.row_of(rows_[j]) : -1;
      return row < graph_.num_rows ? row : -1;
    };
    if (const int64_t row = row_at(i + kAhead); row >= 0) {
      prefetch_line(&graph_.indptr[row]);
    }
    if (const int64_t row = row_at(i + kAhead / 2); row >= 0) {
      prefetch_line(&graph_.indices[static_cast<int64_t>(graph_.indptr[row])]);
    }
  }

  const CsrView<Ptr, Col>& graph_;
  const int64_t* rows_;
  const int64_t* neighbors_;
  int64_t count_;
  bool* exists_;
  Questions long_rows_;
  WantedIds wanted_;
};

}  // namespace

template <class Ptr, class Col>
void has_edges(const CsrView<Ptr, Col>& graph, const int64_t* rows, const int64_t* neighbors,
               int64_t count, bool* exists) {
  EdgeFinder<Ptr, Col>(graph, rows, neighbors, count, exists).find_all();
}

template <class Ptr, class Col>
void degrees(const CsrView<Ptr, Col>& graph, const int64_t* rows, int64_t count, int64_t* degrees) {
  const RowFinder<Ptr, Col> finder(graph);
  const RowSet all{rows, nullptr, nullptr};
  for (int64_t i = 0; i < count; ++i) {
    if (i % kAhead == 0) finder.prefetch_rows(rows + i, std::min(2 * kAhead, count - i));
    const Row row = finder.find(all, i);
    degrees[i] = row.end - row.begin;
  }
}

#define KHOP_INSTANTIATE(Ptr, Col)                                                            \
  template void has_edges<Ptr, Col>(const CsrView<Ptr, Col>&, const int64_t*, const int64_t*, \
                                    int64_t, bool*);                                          \
  template void degrees<Ptr, Col>(const CsrView<Ptr, Col>&, const int64_t*, int64_t, int64_t*);
KHOP_INSTANTIATE(int32_t, int32_t)
KHOP_INSTANTIATE(int32_t, int64_t)
KHOP_INSTANTIATE(int64_t, int32_t)
KHOP_INSTANTIATE(int64_t, int64_t)
#undef KHOP_INSTANTIATE

}  // namespace khop::cpu
