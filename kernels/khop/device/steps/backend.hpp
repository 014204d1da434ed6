// Thread-parallel algorithms as steps and sorts, run by a backend.
//
// A step is a function object that is called once for each item, in any order and at the same time
// as for all others. It may read what earlier steps wrote, write what no other item of the step
// writes or reads, and change shared words by the atomic functions below; what it leaves behind
// must not depend on the order. The same step runs on a GPU (cuda/backend.cuh) and, in random
// orders and on several threads, on the CPU (device/emulated.hpp), which is how it is tested on any
// machine.
//
// Where threads have to work together a step is called for blocks of them instead (`Block`).
//
// A backend has
//   void* allocate(bytes); void release(pointer);
//   void upload(to, from_host, bytes);                the source may change when the call is over
//   void download(to_host, from, bytes);              waits
//   void upload_pinned(...), download_pinned(...)     with page-locked memory of the host, which
//                                                     is read, or written, when its turn comes
//   Mark; void mark(Mark&); void wait(Mark&);         a moment in the order of the calls, which any
//                                                     thread may wait for
//   void fill(pointer, byte, bytes);
//   void run(Count, step);                            step(i) for each i below the count
//   void run_on_threads(Count, most_threads, step);   step(i, thread), on as many threads at most;
//                                                     a thread has one item at a time
//   void run_blocks(int64_t count, step);             step(Block, Shared&) for each of so many
//                                                     blocks, with a step::Shared of the block's
//                                                     own
//   BlockWords* block_words();                        words that blocks of a launch share
//   void sort(int64_t count, SortPairs, int bits);    stable, by the lowest bits of the keys
//   Recording record(f); void launch(recording);      the steps and copies of page-locked memory
//                                                     that f asks for happen at each launch of the
//                                                     recording only
//   void wait_quietly() noexcept;                     for destructors, in any thread
//   on_device()                                       an object; while it lives, calls need not ask
//                                                     which device is the thread's
// All of it happens in the order of the calls; nothing but `download` and `wait` waits.
#pragma once

#include <cstdint>

#ifndef __CUDA_ARCH__
#include <sched.h>
#endif

#include "khop/core/rng.hpp"

namespace khop::device {

// How many items a step has. The caller knows what they are at most; how many there are may be
// known on the device alone.
struct Count {
  int64_t most;
  const int64_t* total = nullptr;

  KHOP_HD int64_t value() const {
    const int64_t count = total != nullptr && *total < most ? *total : most;
    return count < 0 ? 0 : count;
  }
};

constexpr int kBlockThreads = 256;
// No step that needs blocks is split among more of them.
constexpr int64_t kMostBlocks = 512;

#ifndef __CUDACC__
// On the CPU the threads of a block take turns, in another order in each call of `each`.
inline thread_local uint64_t block_order = 0;  // set where a block begins, from the device's seed
inline uint64_t next_order() {
  block_order += 0x9E37'79B9'7F4A'7C15u;
  return block_order * 0xD134'2543'DE82'EF95u >> 40;
}
#endif

// Threads that work together: each call of `each` is over, for all of them, before the next begins.
// What a thread leaves for another, or for itself, lies in memory that they share.
struct Block {
  int64_t index;
  int64_t count;  // of blocks

  template <class F>
  KHOP_HD void each(F&& f) const {
#ifdef __CUDA_ARCH__
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
#elif defined(__CUDACC__)
    for (int thread = 0; thread < kBlockThreads; ++thread) f(thread);
#else
    const uint64_t order = next_order();
    const auto step = static_cast<int>(order >> 8 & 0xFF) | 1;
    for (int i = 0; i < kBlockThreads; ++i) {
      f((static_cast<int>(order & 0xFF) + i * step) % kBlockThreads);
    }
#endif
  }
};

// Keys with values that travel along. What is sorted ends up in `keys` and `values`; the others
// are memory to work in.
struct SortPairs {
  uint64_t* keys;
  int64_t* values;
  uint64_t* other_keys;
  int64_t* other_values;
};

// Words that items of one step share. All return what was there before.

KHOP_HD uint64_t atomic_load(const uint64_t* word) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const volatile unsigned long long*>(word);
#else
  return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
}

KHOP_HD uint64_t atomic_exchange_if(uint64_t* word, uint64_t expected, uint64_t desired) {
#ifdef __CUDA_ARCH__
  return atomicCAS(reinterpret_cast<unsigned long long*>(word), expected, desired);
#else
  __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
#endif
}

KHOP_HD uint64_t atomic_min(uint64_t* word, uint64_t value) {
#ifdef __CUDA_ARCH__
  return atomicMin(reinterpret_cast<unsigned long long*>(word), value);
#else
  uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (value < old && !__atomic_compare_exchange_n(word, &old, value, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
  return old;
#endif
}

KHOP_HD int64_t atomic_add(int64_t* word, int64_t value) {
#ifdef __CUDA_ARCH__
  return static_cast<int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(word),
                                        static_cast<unsigned long long>(value)));
#else
  return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
#endif
}

// What a thread wrote before it released a word is there for those that acquire the word later.

KHOP_HD void store_release(uint64_t* word, uint64_t value) {
#ifdef __CUDA_ARCH__
  __threadfence();
  *reinterpret_cast<volatile unsigned long long*>(word) = value;
#else
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}

KHOP_HD uint64_t load_acquire(const uint64_t* word) {
#ifdef __CUDA_ARCH__
  const uint64_t value = *reinterpret_cast<const volatile unsigned long long*>(word);
  __threadfence();
  return value;
#else
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}

// Adds one to a word, which acquires and releases it. Returns what was there before.
KHOP_HD uint64_t take_turn(uint64_t* word) {
#ifdef __CUDA_ARCH__
  __threadfence();
  const uint64_t before = atomicAdd(reinterpret_cast<unsigned long long*>(word), 1);
  __threadfence();
  return before;
#else
  return __atomic_fetch_add(word, 1, __ATOMIC_ACQ_REL);
#endif
}

// Lets other threads run while one waits for them.
KHOP_HD void pause_thread() {
#ifdef __CUDA_ARCH__
  __nanosleep(20);
#else
  sched_yield();
#endif
}

// Words that the blocks of a launch share. They are all zero at first, and each launch leaves them
// as the next one needs them.
//
// Blocks take turns: the n-th one that begins has the index n, and may wait for those before it,
// which run already. In which order a device starts its blocks does not matter then.
struct BlockWords {
  uint64_t turn;   // 2^16 times the launches so far, and the blocks of this one that have begun
  uint64_t ended;  // blocks of this launch
  int64_t sums[kMostBlocks];
  uint64_t rounds[kMostBlocks];  // of `sums`: number of the launch that wrote it

  struct Turn {
    uint64_t round;
    int64_t index;
  };
  KHOP_HD Turn begin() {
    const uint64_t now = take_turn(&turn);
    return {(now >> kBits) + 1, static_cast<int64_t>(now & kMask)};
  }
  // By the block of the last index.
  KHOP_HD void begin_next_round(Turn last) { turn = last.round << kBits; }

  // Whether all other blocks of this launch have ended. Each block asks once.
  KHOP_HD bool is_last(int64_t num_blocks) {
    if (take_turn(&ended) + 1 != static_cast<uint64_t>(num_blocks)) return false;
    ended = 0;
    return true;
  }

  KHOP_HD void publish(Turn mine, int64_t sum) {
    sums[mine.index] = sum;
    store_release(&rounds[mine.index], mine.round);
  }
  // Waits for the sum of an earlier block.
  KHOP_HD int64_t sum_of(int64_t block, uint64_t round) const {
    while (load_acquire(&rounds[block]) != round) pause_thread();
    return sums[block];
  }

 private:
  static constexpr int kBits = 16;
  static constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  static_assert(kMostBlocks <= static_cast<int64_t>(kMask));
};

// An error on a device: the first that an item of a step reports. The step goes on.
struct DeviceError {
  enum Code : uint64_t {
    kNone,
    kNoSuchRow,       // detail: the node
    kCorruptRow,      // detail: the row
    kNoSuchNeighbor,  // detail: the id
  };
  uint64_t code;
  int64_t detail;

  KHOP_HD void report(Code reason, int64_t about) {
    if (atomic_exchange_if(&code, kNone, reason) == kNone) detail = about;
  }
};

// The last place in sums[0 .. count] whose sum is not above `item`: whose items it is among.
KHOP_HD int64_t owner_of(const int64_t* sums, int64_t count, int64_t item) {
  int64_t low = 0;
  int64_t high = count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (sums[middle] <= item) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Steps and numbers to sum up that many algorithms need.

struct CountOf64 {
  const int64_t* counts;
  KHOP_HD int64_t operator()(int64_t i) const { return counts[i]; }
};

// 1 for the first of equal keys, which lie side by side.
struct FirstOfKey {
  const uint64_t* keys;
  KHOP_HD int64_t operator()(int64_t j) const { return j == 0 || keys[j] != keys[j - 1] ? 1 : 0; }
};

template <class T>
struct CopyValues {
  const T* from;
  T* to;
  KHOP_HD void operator()(int64_t i) const { to[i] = from[i]; }
};

}  // namespace khop::device
