// Copies rows of a table that is split: its hot rows lie in the memory of one device or of several
// that read each other's, the others on the host, where the device reads them in place.
//
// One launch serves all rows. The hot part is ordered by heat. Its first rows lie on each device.
// Of the others row p lies on device p % n at p / n: so each device has its share of the hottest,
// and what goes over the links between them is even. In contiguous stretches the first device would
// hold all of the hottest.
//
// The host's memory is read in lines of 128 bytes, and rows of 400 bytes begin anywhere in them. So
// where rows lie on the host, the items of a row begin with the line in which it begins: a row has
// a slot for each word of the lines that it may touch, and the slots before and after its own bytes
// do nothing. A group of threads then reads one line, not parts of two. Device memory is read in
// sectors of 32 bytes: there it would be more threads for nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "khop/core/divide.hpp"
#include "khop/device/steps/backend.hpp"
#include "khop/device/steps/gather.hpp"
#include "khop/device/steps/gather_order.hpp"
#include "khop/device/steps/widen.hpp"

namespace khop::device {

// All pointers are the gathering device's view.
struct SplitTable {
  const int32_t* places;     // [num_rows] place in the hot part, -1: cold; null: row r has place r
  const void* const* parts;  // [num_parts] rows of the hot part on each device; null: all are cold
  int64_t num_parts;
  int64_t own_part;    // which of them is the gathering device's
  int64_t replicated;  // rows with which each part begins
  const void* cold;    // [num_rows, row_bytes]; null if all rows are hot
  int64_t num_rows;
  int64_t row_bytes;
  uint64_t alignment;  // all addresses in `parts`, or-ed, within their lines
  int64_t sorts_from;  // gathers of so many rows read them in order, if some are cold
  TableCodec codec;

  // Of the bytes of rows and of their addresses, or-ed.
  uint64_t row_alignment() const {
    return static_cast<uint64_t>(row_bytes) | alignment | reinterpret_cast<uintptr_t>(cold);
  }
};

constexpr int64_t kLineBytes = 128;

// Bytes that threads ask for at a time: more would not make a gather faster, but leave less of the
// device to the kernels beside it. PCIe 5 carries 64 GB/s and answers within 2 us, so 128 KiB are
// on their way; four times as much are, with words of 16 bytes, 128 blocks: about one for each
// multiprocessor of an H100. Hot rows in between are to come at the 3.3 TB/s of device memory.
constexpr int64_t kHostBytesAtATime = int64_t{512} << 10;
constexpr int64_t kSplitBytesAtATime = int64_t{2} << 20;

// What gathers leave on the device, so that one copy brings it to the host. A counter that all
// rows share would take longer than the rows: atomics on one address come one after the other, so
// each row counts on one of many, beside those of peers. All words begin with all bits set.
struct SplitCounts {
  static constexpr int64_t kCounters = 64;
  static constexpr int64_t kApart = 16;  // words, 128 bytes

  uint64_t first_bad;
  int64_t served[kCounters * kApart];

  // -1, or the first entry whose row does not exist.
  int64_t bad() const { return first_bad == ~uint64_t{0} ? -1 : static_cast<int64_t>(first_bad); }
  int64_t num_hot() const { return total(0); }
  int64_t num_of_peers() const { return total(1); }

 private:
  int64_t total(int64_t word) const {
    int64_t total = kCounters;  // each began with -1
    for (int64_t i = 0; i < kCounters; ++i) total += served[i * kApart + word];
    return total;
  }
};

// How many items each row has, and with which of its words they begin.
struct RowSlots {
  Divider each;
  uint64_t within_line;  // bits of an address; 0: items begin with the row

  // Slots of a row before its first word.
  template <class Word>
  KHOP_HD int64_t before(const Word* row) const {
    return static_cast<int64_t>((reinterpret_cast<uintptr_t>(row) & within_line) / sizeof(Word));
  }
};

// Lines that a row may touch. It begins at a multiple of the lowest bit of `alignment`.
inline int64_t most_lines(int64_t row_bytes, uint64_t alignment) {
  const auto lowest = static_cast<int64_t>(alignment & (~alignment + 1));
  const int64_t last_begin = kLineBytes - std::min(lowest, kLineBytes);
  return (last_begin + row_bytes + kLineBytes - 1) / kLineBytes;
}

// Rows of up to half a line, most of which touch one, are left dense.
template <class Word>
RowSlots slots_of(const SplitTable& table) {
  constexpr int64_t kWordBytes = sizeof(Word);
  if (table.cold == nullptr || table.row_bytes <= kLineBytes / 2) {
    return {Divider(table.row_bytes / kWordBytes), 0};
  }
  const int64_t lines = most_lines(table.row_bytes, table.row_alignment());
  return {Divider(lines * kLineBytes / kWordBytes), kLineBytes - 1};
}

template <class Word>
int64_t most_threads(const SplitTable& table) {
  if (table.cold == nullptr) return std::numeric_limits<int64_t>::max();
  const int64_t bytes = table.parts == nullptr ? kHostBytesAtATime : kSplitBytesAtATime;
  return bytes / static_cast<int64_t>(sizeof(Word));
}

// An item a slot, so that neighbouring threads copy neighbouring words of a row.
template <class Write, class Wanted>
struct SplitGatherWords {
  using Word = typename Write::Word;
  SplitTable table;
  int64_t words;  // a row
  RowSlots slots;
  Divider parts;
  Wanted wanted;
  Write write;
  SplitCounts* counts;

  KHOP_HD void operator()(int64_t item, int64_t) const {
    const int64_t k = slots.each.quotient(item);
    const int64_t row = wanted.row(k);
    if (row < 0 || row >= table.num_rows) {
      atomic_min(&counts->first_bad, static_cast<uint64_t>(wanted.entry(k)));
      return;
    }
    const int64_t place = table.parts == nullptr ? -1 : place_of(row);
    int64_t part = table.own_part;
    const Word* const from =
        place < 0 ? static_cast<const Word*>(table.cold) + row * words : hot_row(place, part);
    const int64_t word = slots.each.remainder(item, k) - slots.before(from);
    if (word < 0 || word >= words) return;
    write(wanted.entry(k) * words + word, word, load_row_word(&from[word]));
    if (place >= 0 && word == 0) {
      int64_t* const served = &counts->served[k % SplitCounts::kCounters * SplitCounts::kApart];
      atomic_add(&served[0], 1);
      if (part != table.own_part) atomic_add(&served[1], 1);
    }
  }

 private:
  KHOP_HD int64_t place_of(int64_t row) const {
    return table.places == nullptr ? row : table.places[row];
  }
  KHOP_HD const Word* hot_row(int64_t place, int64_t& part) const {
    int64_t at = place;
    if (table.num_parts > 1 && place >= table.replicated) {
      const int64_t shared = place - table.replicated;
      at = parts.quotient(shared);
      part = parts.remainder(shared, at);
      at += table.replicated;
    }
    return static_cast<const Word*>(table.parts[part]) + at * words;
  }
};

template <class Write, class Backend, class Wanted>
void split_gather_words(Backend& backend, const SplitTable& table, const Wanted& wanted,
                        int64_t count, const Write& write, SplitCounts* counts) {
  using Word = typename Write::Word;
  const int64_t words = table.row_bytes / static_cast<int64_t>(sizeof(Word));
  const RowSlots slots = slots_of<Word>(table);
  const Divider parts(std::max<int64_t>(table.num_parts, 1));
  backend.run_on_threads(
      Count{count * slots.each.divisor()}, most_threads<Word>(table),
      SplitGatherWords<Write, Wanted>{table, words, slots, parts, wanted, write, counts});
}

// out[i] = table[rows[i]], widened if the table has a codec, and added to `counts` (on the device).
// Does not wait. Rows that do not exist
// leave out[i] as it was.
template <class Backend, class Index>
void split_gather(Backend& backend, const SplitTable& table, const Index* rows, int64_t count,
                  void* out, SplitCounts* counts, RowSorter<Backend>& sorter) {
  if (table.row_bytes == 0) {
    backend.run(Count{count}, CheckRows<Index>{table.num_rows, rows, &counts->first_bad});
    return;
  }
  const bool sorts = table.cold != nullptr && count >= table.sorts_from;
  const auto gather_by = [&](const auto& write) {
    if (!sorts) {
      split_gather_words(backend, table, RowsAsAsked<Index>{rows}, count, write, counts);
      return;
    }
    for (int64_t first = 0; first < count; first += kSortedAtATime) {
      const int64_t some = std::min(count - first, kSortedAtATime);
      split_gather_words(backend, table, sorter.sort(rows, first, some, table.num_rows), some,
                         write, counts);
    }
  };
  if (table.codec.stored_bytes != 0) {
    with_widening(table.codec, table.row_alignment(), out, gather_by);
    return;
  }
  with_widest_word(table.row_alignment() | reinterpret_cast<uintptr_t>(out), [&](auto word) {
    using Word = decltype(word);
    gather_by(CopyWord<Word>{static_cast<Word*>(out)});
  });
}

}  // namespace khop::device
