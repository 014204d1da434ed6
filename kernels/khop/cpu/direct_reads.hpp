// Reads of rows of a file past the page cache, many at a time, by threads of their own.
//
// A job asks for rows in any order. The rows of all jobs that are not yet read are visited in the
// order of the file, round and round. Rows next to each other are one read if the bytes between
// them take less time than a further read: `gap_bytes`, seconds per read times bytes per second.
// With few rows that is a read for each, with many it is one sweep of the file for all jobs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "khop/cpu/block_cache.hpp"
#include "khop/cpu/io_ring.hpp"

namespace khop::cpu {

struct DirectReadOptions {
  bool use_ring = true;                    // else, and where it is forbidden, threads with pread
  int depth = 128;                         // reads in flight of the ring
  int num_threads = 8;                     // reads in flight without it
  int64_t pool_bytes = int64_t{4} << 20;   // of reads in flight
  int64_t max_bytes = int64_t{256} << 10;  // of one read of several rows
  int64_t cache_bytes = 0;                 // for blocks that stay in memory
};

// Table of rows in a file: row i has the bytes [begin + i * row_bytes, begin + (i + 1) *
// row_bytes).
struct RowRegion {
  int64_t begin;
  int64_t row_bytes;
  int64_t num_rows;
};

struct DirectReadCounts {
  int64_t rows = 0;
  int64_t reads = 0;
  int64_t bytes = 0;
  int64_t cached = 0;  // of the rows
};

class DirectReads {
 public:
  struct Finished {
    int64_t job;
    int error;  // 0, an error's number, or kTruncated
  };
  static constexpr int kTruncated = -1;

  // Takes over the descriptor `file`. Throws std::system_error if there is no memory or thread.
  DirectReads(int file, const RowRegion& region, const DirectReadOptions& options);
  // Ends the threads. Memory of jobs is not written any more. A fork leaves its parent's alone.
  ~DirectReads();
  DirectReads(const DirectReads&) = delete;
  DirectReads& operator=(const DirectReads&) = delete;

  // Begins to read rows, which exist, to out[places[i]], or out[i] without places. `out` stays
  // until the job is finished. Returns the job's number.
  int64_t submit(const int64_t* rows, int64_t count, const int64_t* places, char* out);
  // Jobs that have finished since the last call.
  std::vector<Finished> finished();
  // Ends the threads. Jobs in flight are dropped.
  void close();

  void set_gap(int64_t bytes);
  int event() const { return event_; }           // readable when a job has finished
  bool uses_ring() const { return is_ring_; }    // reads are of io_uring
  bool is_direct() const { return is_direct_; }  // the page cache has no part in them
  bool is_of_this_process() const;               // false in a fork
  DirectReadCounts counts() const;

 private:
  struct Job;
  struct Part {  // rows of one job that a read has
    std::shared_ptr<Job> job;
    int64_t first, end;
  };
  struct Read {
    int64_t offset = 0;  // in the file
    int64_t bytes = 0;   // with what aligns them
    int64_t needed = 0;  // without
    int64_t read = 0;
    int attempts = 0;
    char* memory = nullptr;
    std::vector<Part> parts;
  };

  void start();
  void run_ring();
  void run_thread(char* memory);
  // Takes the result of a read. Returns true if the rest must be read, false if the rows are here
  // or an error has occurred.
  bool goes_on(Read& read, int64_t result, int& error);
  void copy_rows(const Read& read) const;
  void cache_blocks(const Read& read);
  // Copies rows whose blocks are in memory, and removes them from the job.
  void copy_cached(Job& job);
  // The following are called with the lock.
  bool next_read(Read& out);
  int64_t next_row();
  void begin_read(Read& out, int64_t row) const;
  void complete(Read& read, int error);

  const RowRegion region_;
  const DirectReadOptions options_;
  const int owner_;
  int file_, event_ = -1;
  bool is_ring_ = false;
  std::atomic<bool> is_direct_{false};
  IoRing ring_;
  char* memory_ = nullptr;
  std::size_t memory_bytes_ = 0;

  mutable std::mutex lock_;
  std::condition_variable work_;
  bool is_closed_ = false;
  int64_t gap_ = 0, head_ = 0, next_job_ = 0;
  std::vector<std::shared_ptr<Job>> jobs_;  // with rows that no read has yet
  std::deque<Read> again_;                  // rows of a read that failed, one by one
  std::vector<Finished> finished_;
  DirectReadCounts counts_;
  std::vector<std::thread> threads_;

  std::mutex cache_lock_;
  BlockCache cache_;
};

}  // namespace khop::cpu
