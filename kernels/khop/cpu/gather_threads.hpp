// Threads of kernels that copy rows.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace khop::cpu {

// Below this many bytes a second thread costs more than it brings.
constexpr int64_t kBytesPerThread = int64_t{2} << 20;
// What a thread copies at a time: its start, which waits for memory once, is little of it.
constexpr int64_t kBytesPerChunk = int64_t{256} << 10;

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

}  // namespace khop::cpu
