// Copies rows of a table that is split: its hot rows lie in the memory of one device or of several
// that read each other's, the others on the host, where the device reads them in place.
//
// One launch serves all rows. The hot part is ordered by heat, and its row p lies on device p % n
// at p / n: so each device has its share of the hottest rows, and what goes over the links between
// them is even. In contiguous stretches the first device would hold all of the hottest.
#pragma once

#include <cstdint>

#include "khop/parallel/backend.hpp"
#include "khop/parallel/gather.hpp"

namespace khop::parallel {

// All pointers are the gathering device's view.
struct SplitTable {
  const int32_t* places;     // [num_rows] place in the hot part, -1: cold; null: row r has place r
  const void* const* parts;  // [num_parts] rows of the hot part on each device; null: all are cold
  int64_t num_parts;
  const void* cold;  // [num_rows, row_bytes]; null if all rows are hot
  int64_t num_rows;
  int64_t row_bytes;
  uint64_t alignment;  // all addresses in `parts`, or-ed
};

// What gathers leave on the device, so that one copy brings it to the host. A counter that all
// rows share would take longer than the rows: atomics on one address come one after the other, so
// each row counts on one of many. All words begin with all bits set.
struct SplitTally {
  static constexpr int64_t kCounters = 64;
  static constexpr int64_t kApart = 16;  // words, 128 bytes

  uint64_t first_bad;
  int64_t served[kCounters * kApart];

  // -1, or the first entry whose row does not exist.
  int64_t bad() const { return first_bad == ~uint64_t{0} ? -1 : static_cast<int64_t>(first_bad); }
  int64_t num_hot() const {
    int64_t total = kCounters;  // each began with -1
    for (int64_t i = 0; i < kCounters; ++i) total += served[i * kApart];
    return total;
  }
};

// An item a word, as in GatherWords.
template <class Word, class Index>
struct SplitGatherWords {
  SplitTable table;
  int64_t words;  // a row
  const Index* rows;
  Word* out;
  SplitTally* tally;

  KHOP_HD void operator()(int64_t item) const {
    const int64_t i = item / words;
    const int64_t word = item - i * words;
    const auto row = static_cast<int64_t>(rows[i]);
    if (row < 0 || row >= table.num_rows) {
      atomic_min(&tally->first_bad, static_cast<uint64_t>(i));
      return;
    }
    const int64_t place = table.parts == nullptr ? -1 : place_of(row);
    if (place < 0) {
      out[item] = static_cast<const Word*>(table.cold)[row * words + word];
      return;
    }
    const int64_t part = table.num_parts == 1 ? 0 : place % table.num_parts;
    const int64_t at = table.num_parts == 1 ? place : place / table.num_parts;
    out[item] = static_cast<const Word*>(table.parts[part])[at * words + word];
    if (word == 0) {
      atomic_add(&tally->served[i % SplitTally::kCounters * SplitTally::kApart], 1);
    }
  }

 private:
  KHOP_HD int64_t place_of(int64_t row) const {
    return table.places == nullptr ? row : table.places[row];
  }
};

// For rows without a byte: whether they exist.
template <class Index>
struct CheckRows {
  int64_t num_rows;
  const Index* rows;
  SplitTally* tally;

  KHOP_HD void operator()(int64_t i) const {
    const auto row = static_cast<int64_t>(rows[i]);
    if (row < 0 || row >= num_rows) {
      atomic_min(&tally->first_bad, static_cast<uint64_t>(i));
    }
  }
};

template <class Word, class Backend, class Index>
void split_gather_words(Backend& backend, const SplitTable& table, const Index* rows, int64_t count,
                        void* out, SplitTally* tally) {
  const int64_t words = table.row_bytes / static_cast<int64_t>(sizeof(Word));
  backend.run(Count{count * words},
              SplitGatherWords<Word, Index>{table, words, rows, static_cast<Word*>(out), tally});
}

// out[i] = table[rows[i]], added to `tally` (on the device). Does not wait. Rows that do not exist
// leave out[i] as it was.
template <class Backend, class Index>
void split_gather(Backend& backend, const SplitTable& table, const Index* rows, int64_t count,
                  void* out, SplitTally* tally) {
  if (table.row_bytes == 0) {
    backend.run(Count{count}, CheckRows<Index>{table.num_rows, rows, tally});
    return;
  }
  const uint64_t alignment = static_cast<uint64_t>(table.row_bytes) | table.alignment |
                             reinterpret_cast<uintptr_t>(table.cold) |
                             reinterpret_cast<uintptr_t>(out);
  with_widest_word(alignment, [&](auto word) {
    split_gather_words<decltype(word)>(backend, table, rows, count, out, tally);
  });
}

}  // namespace khop::parallel
