#include "gather.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace khop {
namespace {

// Lines asked for ahead of the copy: enough to cover memory latency, few enough to stay in L1.
constexpr int64_t kLinesAhead = 64;
constexpr int64_t kLine = 64;
// Below this many bytes a second thread costs more than it brings.
constexpr int64_t kBytesPerThread = int64_t{2} << 20;
// What a thread copies at a time: its start, which waits for memory once, is little of it.
constexpr int64_t kBytesPerChunk = int64_t{256} << 10;

// A fixed width lets the compiler turn the copy into a few moves.
template <int64_t kBytes>
struct FixedCopy {
  void operator()(char* to, const char* from, int64_t) const { std::memcpy(to, from, kBytes); }
};
struct AnyCopy {
  void operator()(char* to, const char* from, int64_t bytes) const {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
};

template <class Index, class Copy>
int64_t gather_range(const RowTable& table, const Index* rows, int64_t begin, int64_t end,
                     const int64_t* places, char* out, int64_t num_out, Copy copy) {
  const int64_t width = table.row_bytes;
  const int64_t lines = (width + kLine - 1) / kLine;
  const int64_t ahead = std::max<int64_t>(2, kLinesAhead / std::max<int64_t>(lines, 1));
  for (int64_t i = begin; i < end; ++i) {
    if (i + ahead < end) {
      const int64_t row = static_cast<int64_t>(rows[i + ahead]);
      if (row >= 0 && row < table.num_rows) {
        const char* from = table.data + row * width;
        for (int64_t line = 0; line < width; line += kLine) __builtin_prefetch(from + line);
        __builtin_prefetch(from + width - 1);
      }
    }
    const int64_t row = static_cast<int64_t>(rows[i]);
    const int64_t place = places == nullptr ? i : places[i];
    if (row < 0 || row >= table.num_rows || place < 0 || place >= num_out) return i;
    copy(out + place * width, table.data + row * width, width);
  }
  return -1;
}

template <class Index, class Copy>
int64_t gather_threaded(const RowTable& table, const Index* rows, int64_t count,
                        const int64_t* places, char* out, int64_t num_out, int num_threads,
                        Copy copy) {
  const int64_t bytes = count * table.row_bytes;
  const int64_t threads = std::clamp<int64_t>(bytes / kBytesPerThread, 1, std::max(num_threads, 1));
  if (threads == 1) return gather_range(table, rows, 0, count, places, out, num_out, copy);

  // Threads take chunks as they go: one that shares its core with others takes fewer.
  const int64_t chunk = std::max<int64_t>(kBytesPerChunk / table.row_bytes, 1);
  std::atomic<int64_t> next{0};
  std::vector<int64_t> bad(static_cast<std::size_t>(threads), count);
  const auto run = [&](int64_t t) {
    for (int64_t begin; (begin = next.fetch_add(chunk, std::memory_order_relaxed)) < count;) {
      const int64_t end = std::min(begin + chunk, count);
      const int64_t first = gather_range(table, rows, begin, end, places, out, num_out, copy);
      if (first >= 0) {
        bad[static_cast<std::size_t>(t)] = first;
        return;
      }
    }
  };
  std::vector<std::thread> workers;
  for (int64_t t = 1; t < threads; ++t) workers.emplace_back(run, t);
  run(0);
  for (std::thread& worker : workers) worker.join();
  const int64_t first = *std::min_element(bad.begin(), bad.end());
  return first < count ? first : -1;
}

}  // namespace

template <class Index>
int64_t gather_rows(const RowTable& table, const Index* rows, int64_t count, const int64_t* places,
                    char* out, int64_t num_out, int num_threads) {
  const auto run = [&](auto copy) {
    return gather_threaded(table, rows, count, places, out, num_out, num_threads, copy);
  };
  switch (table.row_bytes) {
    case 1:
      return run(FixedCopy<1>{});
    case 2:
      return run(FixedCopy<2>{});
    case 4:
      return run(FixedCopy<4>{});
    case 8:
      return run(FixedCopy<8>{});
    case 16:
      return run(FixedCopy<16>{});
    default:
      return run(AnyCopy{});
  }
}

template <class Name>
int64_t rename_ids(const Name* names, int64_t num_names, const int64_t* ids, int64_t count,
                   int64_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    if (i + kLinesAhead < count) {
      const int64_t next = ids[i + kLinesAhead];
      if (next >= 0 && next < num_names) __builtin_prefetch(names + next);
    }
    const int64_t id = ids[i];
    if (id < 0 || id >= num_names) return i;
    out[i] = static_cast<int64_t>(names[id]);
  }
  return -1;
}

template int64_t rename_ids<int32_t>(const int32_t*, int64_t, const int64_t*, int64_t, int64_t*);
template int64_t rename_ids<int64_t>(const int64_t*, int64_t, const int64_t*, int64_t, int64_t*);

template int64_t gather_rows<int32_t>(const RowTable&, const int32_t*, int64_t, const int64_t*,
                                      char*, int64_t, int);
template int64_t gather_rows<int64_t>(const RowTable&, const int64_t*, int64_t, const int64_t*,
                                      char*, int64_t, int);

}  // namespace khop
