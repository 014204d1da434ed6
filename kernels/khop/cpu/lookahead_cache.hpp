// Plan of a cache of rows whose next batches are known: Belady's rule within a window.
//
// The class decides which rows are cached, and in which slot. It holds no rows. Its user announces
// the ids of each later batch, takes the batches, and moves the rows as `take` says.
//
// After each batch the cache holds the best of its rows and the batch's rows (a row that is not
// among them is not stored: bypass). A row is better than another
//   1. if an announced batch needs it, and none needs the other, or a later one first,
//   2. among rows without known use, if its rank is higher: the number of batches that have used
//      it, at most 63, added to the rank of the last row that was evicted without known use
//      (LFU with dynamic aging: Arlitt et al., Evaluating Content Management Techniques for Web
//      Proxy Caches, 2000). Uses are counted while a row is cached or announced,
//   3. among these, if a later batch has used it, or the same at a later position.
// With all batches announced this is Belady's optimum for batches whose rows are needed together
// (A Study of Replacement Algorithms for a Virtual-Storage Computer, 1966). Each id costs O(1).
//
// A cache with space for all rows that exist never evicts. It then keeps neither uses nor queues,
// which are most of the cache lines that an id costs: its time is a third.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "khop/cpu/buffer.hpp"

namespace khop::cpu {

class LookaheadCache {
 public:
  // Rows of one batch. Rows of hits must be copied before rows of misses are stored: a slot may
  // pass from one of the former to one of the latter.
  struct Taken {
    Buffer<int64_t> hit_positions;  // positions in the announced ids of the rows in the cache
    Buffer<int64_t> hit_slots;      // the slot of each
    Buffer<int64_t> misses;         // ids of other rows, each once
    Buffer<int64_t> positions;      // the first position of each
    Buffer<int64_t> slots;          // the slot that it is stored in, or -1
    Buffer<int64_t> repeats;        // further positions of misses
    Buffer<int64_t> originals;      // the first position of each
  };

  // Of `capacity` rows, of at most `num_rows` that exist. Throws std::invalid_argument for a
  // capacity that is negative or above 2^30.
  explicit LookaheadCache(int64_t capacity, int64_t num_rows = std::numeric_limits<int64_t>::max());

  // Announces the ids of a later batch, in any order, repeated or not. Returns its number: batches
  // are counted from 0, in the order in which they will be taken.
  int64_t announce(const int64_t* ids, int64_t count);

  // Takes an announced batch. Throws std::out_of_range for one that is not announced.
  void take(int64_t batch, Taken& out);

  // Withdraws an announced batch. Throws as `take`.
  void forget(int64_t batch);

  // Removes rows from the cache: they could not be stored. Ids of other rows are ignored.
  void discard(const int64_t* ids, int64_t count);

  // Forgets all rows and all announced batches.
  void clear();

  int64_t capacity() const { return capacity_; }
  int64_t num_rows() const { return num_ranked_; }     // in the cache
  int64_t num_announced() const { return num_open_; }  // batches
  int64_t nbytes() const;                              // of the plan

 private:
  static constexpr int kLevels = 64;

  // A row that is cached or announced.
  struct Entry {
    int64_t id;
    int32_t queue, position;      // of its link: rows with the same next use, or of one rank
    int32_t first_use, last_use;  // of an unused entry: the next unused one
    int32_t slot;
    int32_t mark;    // in the batch that is taken: index of a miss, or -1 for a hit
    uint32_t stamp;  // the last batch that took it
    uint8_t count;
    bool is_ranked;  // it is in a queue: in the cache, or a candidate
  };
  struct Use {
    int64_t batch;
    int32_t next;
  };
  // Rows in the order in which they are evicted. A row that leaves it, or enters it anew, leaves a
  // stale link behind: an array costs fewer cache lines than a list, and can be read ahead.
  struct Queue {
    Buffer<int32_t> rows;
    int64_t begin = 0;  // links before it are stale
    int64_t num_live = 0;

    void clear() {
      rows.clear();
      begin = num_live = 0;
    }
  };
  struct Batch {
    Buffer<int32_t> entries;  // of each position
    Queue queue;              // rows whose next use it is
    bool is_open = false;
  };
  static constexpr int64_t kBatchMask = (int64_t{1} << 30) - 1;

  Batch& open_batch(int64_t batch);
  void close(int64_t batch);
  int64_t find(int64_t id) const;
  int32_t find_or_add(int64_t id);
  int64_t home(int64_t id) const;
  void grow_table(int64_t count);
  int32_t new_entry(int64_t id);
  void drop(int32_t entry);
  void add_use(int32_t entry, int64_t batch);
  void remove_use(int32_t entry, int64_t batch);
  void link(int32_t entry);
  void unlink(int32_t entry);
  Queue& queue_of(int32_t number);
  bool is_live(int32_t entry, int32_t queue, int64_t position) const;
  void compact(Queue& queue, int32_t number);
  void evict(int64_t count);
  int64_t evict_first(int32_t queue, int64_t count);
  void evict_one(int32_t entry);

  int64_t capacity_;
  bool keeps_all_;  // all rows have a slot: there are no queues and no uses
  int64_t num_ranked_ = 0;
  int64_t num_idle_ = 0;  // of these, without known use
  int64_t num_open_ = 0;
  int64_t num_entries_ = 0;
  int64_t floor_ = 0;  // rank of the last row that was evicted without known use
  int64_t first_batch_ = 0;
  uint32_t stamp_ = 0;
  int bits_ = 4;
  int32_t free_entry_ = -1, free_use_ = -1;
  int64_t num_slots_ = 0;
  Buffer<int32_t> free_slots_;
  Buffer<int32_t> table_;
  Buffer<Entry> entries_;
  std::array<Queue, kLevels> ranks_;
  Buffer<Use> uses_;
  std::deque<Batch> batches_;
  std::deque<Batch> spare_;
  Buffer<int32_t> missed_;
};

}  // namespace khop::cpu
