// The order in which a gather reads rows: as they were asked for, or as they lie in the table.
//
// Reads of host memory are translated page by page, and those of neighbouring rows at the same time
// share pages and their translations. Where rows are written does not depend on the order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "khop/device/steps/backend.hpp"
#include "khop/device/steps/memory.hpp"

namespace khop::device {

// From so many rows on, gathers that read host memory sort them. A sort is about six launches
// (some 30 us on an H100), and 65,536 rows of 400 bytes take 0.5 ms over PCIe 5.
constexpr int64_t kSortsFrom = int64_t{1} << 16;
// Rows that are sorted at a time, which takes 32 bytes each: 32 MiB a device, for all its tables.
constexpr int64_t kSortedAtATime = int64_t{1} << 20;

// What is read k-th: which row, and for which entry of those asked for.
template <class Index>
struct RowsAsAsked {
  const Index* rows;

  KHOP_HD int64_t row(int64_t k) const { return static_cast<int64_t>(rows[k]); }
  KHOP_HD int64_t entry(int64_t k) const { return k; }
};

struct SortedRows {
  const uint64_t* rows;
  const int64_t* entries;

  KHOP_HD int64_t row(int64_t k) const { return static_cast<int64_t>(rows[k]); }
  KHOP_HD int64_t entry(int64_t k) const { return entries[k]; }
};

template <class Index>
struct PairRows {
  const Index* rows;
  int64_t first;
  uint64_t* keys;
  int64_t* entries;

  KHOP_HD void operator()(int64_t i) const {
    keys[i] = static_cast<uint64_t>(static_cast<int64_t>(rows[first + i]));
    entries[i] = first + i;
  }
};

// Sorts rows, in memory that it keeps: gathers of a device follow one another, so all its tables
// share it.
template <class Backend>
class RowSorter {
 public:
  explicit RowSorter(Backend& backend) : backend_(&backend), memory_(backend) {}

  // Entries first to first + count - 1 of `rows`, in the order of a table of `num_rows`. Rows that
  // do not exist are somewhere among them. Holds until the next call. Does not wait.
  template <class Index>
  SortedRows sort(const Index* rows, int64_t first, int64_t count, int64_t num_rows) {
    if (count > memory_.capacity()) {
      memory_.reserve(std::max(count, std::min(count + count / 4, kSortedAtATime)));
    }
    const SortPairs pairs = memory_.pairs();
    backend_->run(Count{count}, PairRows<Index>{rows, first, pairs.keys, pairs.values});
    backend_->sort(count, pairs, bits_for(num_rows));
    return {pairs.keys, pairs.values};
  }

 private:
  Backend* backend_;
  SortMemory<Backend> memory_;
};

}  // namespace khop::device
