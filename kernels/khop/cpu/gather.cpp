#include "khop/cpu/gather.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "khop/cpu/gather_range.hpp"

namespace khop::cpu {

#ifdef KHOP_X86
template <class Index>
int64_t gather_lines_avx512(const RowTable& table, const Index* rows, int64_t begin, int64_t end,
                            const RowTarget& target);
#endif

namespace {

// Below this many bytes a second thread costs more than it brings.
constexpr int64_t kBytesPerThread = int64_t{2} << 20;
// What a thread copies at a time: its start, which waits for memory once, is little of it.
constexpr int64_t kBytesPerChunk = int64_t{256} << 10;

// A fixed width lets the compiler turn the copy into a move. Such rows are aligned by it.
template <int64_t kBytes>
struct FixedCopy {
  static constexpr bool kInOneLine = true;
  static constexpr int64_t kWidens = 1;
  void operator()(char* to, const char* from, int64_t) const { std::memcpy(to, from, kBytes); }
};
struct WideningCopy {
  static constexpr bool kInOneLine = true;
  static constexpr int64_t kWidens = sizeof(int64_t) / sizeof(int32_t);
  void operator()(char* to, const char* from, int64_t) const {
    int32_t value;
    std::memcpy(&value, from, sizeof value);
    const int64_t wide = value;
    std::memcpy(to, &wide, sizeof wide);
  }
};
struct AnyCopy {
  static constexpr bool kInOneLine = false;
  static constexpr int64_t kWidens = 1;
  void operator()(char* to, const char* from, int64_t bytes) const {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
};

// Calls gather(begin, end) for the rows of [0, count) in one thread or several, and returns the
// smallest result that is not -1, or -1.
template <class Gather>
int64_t in_threads(int64_t count, int64_t row_bytes, int num_threads, Gather gather) {
  if (row_bytes == 0) return gather(0, count);
  const int64_t wanted = count / std::max<int64_t>(kBytesPerThread / row_bytes, 1);
  const int64_t threads = std::clamp<int64_t>(wanted, 1, std::max(num_threads, 1));
  if (threads == 1) return gather(0, count);

  // Threads take chunks as they go: one that shares its core with others takes fewer.
  const int64_t chunk = std::max<int64_t>(kBytesPerChunk / row_bytes, 1);
  std::atomic<int64_t> next{0};
  std::vector<int64_t> bad(static_cast<std::size_t>(threads), count);
  const auto run = [&](int64_t t) {
    for (int64_t begin; (begin = next.fetch_add(chunk, std::memory_order_relaxed)) < count;) {
      const int64_t first = gather(begin, std::min(begin + chunk, count));
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
int64_t gather_rows(const RowTable& table, const Index* rows, int64_t count,
                    const RowTarget& target, int num_threads) {
  const auto run = [&](auto copy) {
    return in_threads(count, table.row_bytes, num_threads, [&](int64_t begin, int64_t end) {
      return gather_range(table, rows, begin, end, target, copy);
    });
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
      break;
  }
#ifdef KHOP_X86
  if (table.row_bytes >= kLine && __builtin_cpu_supports("avx512f")) {
    return in_threads(count, table.row_bytes, num_threads, [&](int64_t begin, int64_t end) {
      return gather_lines_avx512(table, rows, begin, end, target);
    });
  }
#endif
  return run(AnyCopy{});
}

template <class Index>
int64_t gather_widened(const RowTable& table, const Index* rows, int64_t count,
                       const RowTarget& target, int num_threads) {
  return in_threads(count, table.row_bytes, num_threads, [&](int64_t begin, int64_t end) {
    return gather_range(table, rows, begin, end, target, WideningCopy{});
  });
}

#define KHOP_INSTANTIATE(Index)                                                                    \
  template int64_t gather_rows<Index>(const RowTable&, const Index*, int64_t, const RowTarget&,    \
                                      int);                                                        \
  template int64_t gather_widened<Index>(const RowTable&, const Index*, int64_t, const RowTarget&, \
                                         int);
KHOP_INSTANTIATE(int32_t)
KHOP_INSTANTIATE(int64_t)
#undef KHOP_INSTANTIATE

}  // namespace khop::cpu
