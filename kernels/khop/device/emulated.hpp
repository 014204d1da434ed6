// A device that is emulated on the CPU: steps run in random orders, on one thread or several.
//
// For tests of thread-parallel code on machines without a GPU. An algorithm whose result depends on
// the order of its items, or that reads what it never wrote (memory comes filled with a pattern),
// fails tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "khop/core/sizes.hpp"
#include "khop/device/device.hpp"
#include "khop/device/host_pages.hpp"
#include "khop/device/shared_files.hpp"
#include "khop/device/steps/backend.hpp"

namespace khop::device {

// Registers memory as CUDA's driver does: whole pages, no page twice, and only what was registered
// can be given back. Ends the process otherwise, for a destructor has nothing to report to.
class EmulatedDriver {
 public:
  bool add(uintptr_t start, std::size_t bytes) {
    const uintptr_t begin = HostPages::page_of(start);
    const uintptr_t end = HostPages::page_after(start + bytes);
    for (const auto& [other, range] : ranges_) {
      if (begin < range.second && range.first < end) std::abort();
    }
    ranges_[start] = {begin, end};
    return true;
  }
  void remove(uintptr_t start) {
    if (ranges_.erase(start) == 0) std::abort();
  }

 private:
  std::map<uintptr_t, std::pair<uintptr_t, uintptr_t>> ranges_;
};

class EmulatedBackend {
 public:
  EmulatedBackend(uint64_t seed, int num_threads, EmulatedAbilities abilities = {})
      : random_(seed), num_threads_(num_threads), abilities_(abilities) {}

  void* allocate(std::size_t bytes) {
    void* memory = std::malloc(bytes == 0 ? 1 : bytes);
    if (memory == nullptr) throw OutOfMemory(bytes, 1);
    std::memset(memory, kPattern, bytes);
    return memory;
  }
  void release(void* memory) { std::free(memory); }

  void upload(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes); }
  void upload_pinned(void* to, const void* from, std::size_t bytes) {
    if (recording_ != nullptr) {
      recording_->push_back([=] { copy(to, from, bytes); });
    } else {
      copy(to, from, bytes);
    }
  }
  void download_pinned(void* to, const void* from, std::size_t bytes) {
    upload_pinned(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void fill(void* memory, int byte, std::size_t bytes) {
    if (bytes > 0) std::memset(memory, byte, bytes);
  }
  void synchronize() {}
  struct Mark {
    explicit Mark(const EmulatedBackend&) {}
  };
  void mark(Mark&) {}
  void wait(Mark&) {}
  struct OnDevice {};
  OnDevice on_device() const { return {}; }
  void wait_quietly() noexcept {}

  const void* map_host(const void* memory, std::size_t bytes, const HostOwner& owner) {
    Host& host = Host::get();
    const bool acquired =
        host.pages.acquire(memory, bytes, owner, [&](uintptr_t start, std::size_t size) {
          return abilities_.maps_host && host.driver.add(start, size);
        });
    return acquired ? memory : nullptr;
  }
  void unmap_host(const void* memory, std::size_t bytes) noexcept {
    Host& host = Host::get();
    host.pages.release(memory, bytes, [&](uintptr_t start) { host.driver.remove(start); });
  }
  void* allocate_host(std::size_t bytes) { return allocate(bytes); }
  void release_host(void* memory) noexcept { release(memory); }

  bool reach(const EmulatedBackend& peer) const {
    return abilities_.island == peer.abilities_.island;
  }
  void* allocate_for_peers(std::size_t bytes) {
    void* const memory = SharedFiles::get().allocate(bytes);
    if (memory == nullptr) throw OutOfMemory(bytes, 1);
    std::memset(memory, kPattern, bytes);
    return memory;
  }
  void release_for_peers(void* memory) noexcept { SharedFiles::get().release(memory); }
  std::string handle_of(void* memory) const { return SharedFiles::get().handle_of(memory); }
  void* open_handle(const std::string& handle) const { return SharedFiles::get().open(handle); }
  void close_handle(void* memory) const noexcept { SharedFiles::get().release(memory); }
  bool lock_pages(void*, std::size_t) const noexcept { return abilities_.maps_host; }
  void unlock_pages(void*) const noexcept {}

  // Steps as they were asked for, with the arguments that they had then, to be run again.
  using Recording = std::vector<std::function<void()>>;

  template <class Steps>
  Recording record(Steps&& steps) {
    Recording recording;
    recording_ = &recording;
    steps();
    recording_ = nullptr;
    return recording;
  }
  void launch(const Recording& recording) {
    const int64_t before = num_launches_;
    for (const auto& step : recording) step();
    num_launches_ = before + 1;
  }

  template <class Step>
  void run(Count items, Step step) {
    run_on_threads(items, items.most, [step](int64_t i, int64_t) { step(i); });
  }

  template <class Step>
  void run_on_threads(Count items, int64_t most_threads, Step step) {
    if (items.most <= 0) return;
    if (recording_ != nullptr) {
      recording_->push_back([=] { run_on_threads(items, most_threads, step); });
      return;
    }
    const int64_t count = items.value();
    shuffle(count);
    ++num_launches_;
    const int64_t num_threads = std::min<int64_t>(num_threads_, most_threads);
    if (num_threads <= 1 || count < kWorthThreads) {
      for (const int64_t i : order_) step(i, 0);
      return;
    }
    // Round-robin, so that neighbouring items run at the same time.
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < num_threads; ++t) {
      threads.emplace_back([this, t, count, num_threads, &step] {
        for (int64_t j = t; j < count; j += num_threads) {
          step(order_[static_cast<std::size_t>(j)], t);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  template <class Step>
  void run_blocks(int64_t count, Step step) {
    run(Count{count}, [count, step, seed = random_()](int64_t block) {
      block_order = seed + static_cast<uint64_t>(block);
      typename Step::Shared shared;
      step(Block{block, count}, shared);
    });
  }
  BlockWords* block_words() { return block_words_.get(); }

  void sort(int64_t count, SortPairs pairs, int bits) {
    ++num_launches_;
    const uint64_t mask = bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
    order_.resize(static_cast<std::size_t>(count));
    std::iota(order_.begin(), order_.end(), int64_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
      return (pairs.keys[a] & mask) < (pairs.keys[b] & mask);
    });
    for (int64_t i = 0; i < count; ++i) {
      pairs.other_keys[i] = pairs.keys[order_[static_cast<std::size_t>(i)]];
      pairs.other_values[i] = pairs.values[order_[static_cast<std::size_t>(i)]];
    }
    std::copy_n(pairs.other_keys, count, pairs.keys);
    std::copy_n(pairs.other_values, count, pairs.values);
  }

  int64_t num_launches() const { return num_launches_; }
  void* stream() const { return nullptr; }

 private:
  static constexpr int kPattern = 0xA5;
  static constexpr int64_t kWorthThreads = 64;

  // Of the process: all devices register with one driver. Never destroyed, for devices may live
  // until the end.
  struct Host {
    HostPages pages;
    EmulatedDriver driver;
    static Host& get() {
      static Host* const host = new Host;
      return *host;
    }
  };

  void shuffle(int64_t count) {
    order_.resize(static_cast<std::size_t>(count));
    std::iota(order_.begin(), order_.end(), int64_t{0});
    std::shuffle(order_.begin(), order_.end(), random_);
  }

  std::mt19937_64 random_;
  int num_threads_;
  EmulatedAbilities abilities_;
  std::vector<int64_t> order_;
  std::unique_ptr<BlockWords> block_words_ = std::make_unique<BlockWords>();
  int64_t num_launches_ = 0;
  Recording* recording_ = nullptr;
};

}  // namespace khop::device
