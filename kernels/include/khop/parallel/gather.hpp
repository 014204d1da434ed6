// Copies rows of a table.
#pragma once

#include <cstdint>

#include "khop/parallel/backend.hpp"

namespace khop::parallel {

struct RowTable {
  const void* data;
  int64_t num_rows;
  int64_t row_bytes;
};

struct alignas(16) Word16 {
  uint64_t low;
  uint64_t high;
};

// Calls f with a word of the widest kind that divides an alignment: that of rows' bytes and of all
// addresses, or-ed.
template <class F>
void with_widest_word(uint64_t alignment, F&& f) {
  if (alignment % 16 == 0) {
    f(Word16{});
  } else if (alignment % 8 == 0) {
    f(uint64_t{});
  } else if (alignment % 4 == 0) {
    f(uint32_t{});
  } else if (alignment % 2 == 0) {
    f(uint16_t{});
  } else {
    f(uint8_t{});
  }
}

// An item a word: neighbouring threads copy neighbouring words of a row, so accesses coalesce.
template <class Word, class Index>
struct GatherWords {
  const Word* table;
  int64_t num_rows;
  int64_t words;  // a row
  const Index* rows;
  Word* out;
  uint64_t* first_bad;

  KHOP_HD void operator()(int64_t item) const {
    const int64_t i = item / words;
    const auto row = static_cast<int64_t>(rows[i]);
    if (row < 0 || row >= num_rows) {
      atomic_min(first_bad, static_cast<uint64_t>(i));
      return;
    }
    out[item] = table[row * words + (item - i * words)];
  }
};

template <class Word, class Backend, class Index>
void gather_words(Backend& backend, const RowTable& table, const Index* rows, int64_t count,
                  void* out, uint64_t* first_bad) {
  const int64_t words = table.row_bytes / static_cast<int64_t>(sizeof(Word));
  backend.run(Count{count * words},
              GatherWords<Word, Index>{static_cast<const Word*>(table.data), table.num_rows, words,
                                       rows, static_cast<Word*>(out), first_bad});
}

// out[i] = table[rows[i]]. All pointers must be readable (table, rows) or writable (out) by the
// device. Waits. Returns -1, or the first i whose row does not exist; out[i] is left as it was.
template <class Backend, class Index>
int64_t gather(Backend& backend, const RowTable& table, const Index* rows, int64_t count,
               void* out) {
  if (count == 0 || table.row_bytes == 0) return -1;
  constexpr uint64_t kNone = ~uint64_t{0};
  auto* first_bad = static_cast<uint64_t*>(backend.allocate(sizeof(uint64_t)));
  backend.fill(first_bad, 0xFF, sizeof(uint64_t));
  const uint64_t alignment = static_cast<uint64_t>(table.row_bytes) |
                             reinterpret_cast<uintptr_t>(table.data) |
                             reinterpret_cast<uintptr_t>(out);
  with_widest_word(alignment, [&](auto word) {
    gather_words<decltype(word)>(backend, table, rows, count, out, first_bad);
  });
  uint64_t bad = kNone;
  backend.download(&bad, first_bad, sizeof(bad));
  backend.release(first_bad);
  return bad == kNone ? -1 : static_cast<int64_t>(bad);
}

}  // namespace khop::parallel
