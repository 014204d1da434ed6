// Copies rows of a table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "khop/core/divide.hpp"
#include "khop/device/steps/backend.hpp"

namespace khop::device {

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

// Writes what this step does not read again: the caches are left to the table.
template <class Word>
KHOP_HD void store_streaming(Word* to, Word value) {
#ifdef __CUDA_ARCH__
  __stcs(to, value);
#else
  *to = value;
#endif
}
KHOP_HD void store_streaming(Word16* to, Word16 value) {
#ifdef __CUDA_ARCH__
  __stcs(reinterpret_cast<ulonglong2*>(to), make_ulonglong2(value.low, value.high));
#else
  *to = value;
#endif
}

// A word of a row. On the CPU, tests count where rows are read.
#ifndef __CUDACC__
inline void (*note_row_read)(const void* from, std::size_t bytes) = nullptr;
#endif
template <class Word>
KHOP_HD Word load_row_word(const Word* from) {
#ifndef __CUDACC__
  if (note_row_read != nullptr) note_row_read(from, sizeof(Word));
#endif
  return *from;
}

// An item a word: neighbouring threads copy neighbouring words of a row, so accesses coalesce.
template <class Word, class Index>
struct GatherWords {
  const Word* table;
  int64_t num_rows;
  Divider words;  // a row
  const Index* rows;
  Word* out;
  uint64_t* first_bad;

  KHOP_HD void operator()(int64_t item) const {
    const int64_t i = words.quotient(item);
    const auto row = static_cast<int64_t>(rows[i]);
    if (row < 0 || row >= num_rows) {
      atomic_min(first_bad, static_cast<uint64_t>(i));
      return;
    }
    store_streaming(&out[item], table[row * words.divisor() + words.remainder(item, i)]);
  }
};

// For rows without a byte: whether they exist.
template <class Index>
struct CheckRows {
  int64_t num_rows;
  const Index* rows;
  uint64_t* first_bad;

  KHOP_HD void operator()(int64_t i) const {
    const auto row = static_cast<int64_t>(rows[i]);
    if (row < 0 || row >= num_rows) atomic_min(first_bad, static_cast<uint64_t>(i));
  }
};

template <class Word, class Backend, class Index>
void gather_words(Backend& backend, const RowTable& table, const Index* rows, int64_t count,
                  void* out, uint64_t* first_bad) {
  const Divider words(table.row_bytes / static_cast<int64_t>(sizeof(Word)));
  backend.run(Count{count * words.divisor()},
              GatherWords<Word, Index>{static_cast<const Word*>(table.data), table.num_rows, words,
                                       rows, static_cast<Word*>(out), first_bad});
}

// out[i] = table[rows[i]]. All pointers must be readable (table, rows) or writable (out) by the
// device. Does not wait. Lowers `first_bad` to the first i whose row does not exist; out[i] is left
// as it was.
template <class Backend, class Index>
void gather(Backend& backend, const RowTable& table, const Index* rows, int64_t count, void* out,
            uint64_t* first_bad) {
  if (table.row_bytes == 0) {
    backend.run(Count{count}, CheckRows<Index>{table.num_rows, rows, first_bad});
    return;
  }
  const uint64_t alignment = static_cast<uint64_t>(table.row_bytes) |
                             reinterpret_cast<uintptr_t>(table.data) |
                             reinterpret_cast<uintptr_t>(out);
  with_widest_word(alignment, [&](auto word) {
    gather_words<decltype(word)>(backend, table, rows, count, out, first_bad);
  });
}

}  // namespace khop::device
