#include "khop/cpu/direct_reads.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <limits>
#include <system_error>

#include "khop/cpu/read_pool.hpp"

namespace khop::cpu {
namespace {

// Alignment of offsets, lengths and memory: the most that disks want.
constexpr int64_t kBlock = BlockCache::kBlock;
constexpr int kAttempts = 100;         // of a read that is interrupted or refused for the moment
constexpr int64_t kRowsAtOnce = 4096;  // of the cache, with its lock

int64_t down(int64_t bytes) { return bytes - bytes % kBlock; }
int64_t up(int64_t bytes) { return down(bytes + kBlock - 1); }

void copy_row(char* to, const char* from, std::size_t bytes) {
  switch (bytes) {  // neighbours and edges: a call would take longer than the copy
    case 4:
      std::memcpy(to, from, 4);
      break;
    case 8:
      std::memcpy(to, from, 8);
      break;
    default:
      std::memcpy(to, from, bytes);
  }
}

struct Entry {
  int64_t row, place;
};

[[noreturn]] void raise(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

struct DirectReads::Job {
  int64_t id;
  char* out;
  std::vector<Entry> entries;  // ascending rows
  int64_t cursor = 0;          // of the entry that is visited next
  int64_t unread = 0;          // entries that no read has yet
  int64_t left = 0;            // entries that are not finished
  int error = 0;
};

DirectReads::DirectReads(int file, const RowRegion& region, const DirectReadOptions& options)
    : region_(region), options_(options), owner_(getpid()), file_(file) {
  try {
    start();
  } catch (...) {
    close();
    if (event_ >= 0) ::close(event_);
    throw;
  }
}

DirectReads::~DirectReads() {
  close();
  if (event_ >= 0) ::close(event_);
}

bool DirectReads::is_of_this_process() const { return owner_ == getpid(); }

void DirectReads::start() {
  if (options_.cache_bytes > 0) {
    cache_ = BlockCache(options_.cache_bytes, region_.begin + region_.num_rows * region_.row_bytes);
  }
  const int flags = fcntl(file_, F_GETFL);
  is_direct_ = fcntl(file_, F_SETFL, flags | O_DIRECT) == 0;
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_ < 0) raise("eventfd");
  const int64_t longest = std::max(options_.max_bytes, region_.row_bytes) + 2 * kBlock;
  const int64_t of_threads = up(longest) * options_.num_threads;
  const int64_t bytes = up(std::max(options_.pool_bytes, 2 * up(longest)));
  memory_bytes_ = static_cast<std::size_t>(options_.use_ring ? bytes : of_threads);
  const auto map = [this] {
    void* memory =
        mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) raise("memory for reads");
    madvise(memory, memory_bytes_, MADV_DONTFORK);
    memory_ = static_cast<char*>(memory);
  };
  map();
  is_ring_ = options_.use_ring &&
             ring_.open(static_cast<unsigned>(options_.depth), file_, memory_, memory_bytes_);
  if (options_.use_ring && !is_ring_) {
    munmap(memory_, memory_bytes_);
    memory_ = nullptr;
    memory_bytes_ = static_cast<std::size_t>(of_threads);
    map();
  }
  // Signals are for Python's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    if (is_ring_) {
      threads_.emplace_back([this] { run_ring(); });
    } else {
      for (int i = 0; i < options_.num_threads; ++i) {
        char* memory = memory_ + i * up(longest);
        threads_.emplace_back([this, memory] { run_thread(memory); });
      }
    }
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void DirectReads::close() {
  {
    const std::lock_guard<std::mutex> lock(lock_);
    is_closed_ = true;
    jobs_.clear();
    again_.clear();
  }
  work_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
  ring_.close();
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
  memory_ = nullptr;
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

int64_t DirectReads::submit(const int64_t* rows, int64_t count, const int64_t* places, char* out) {
  auto job = std::make_shared<Job>();
  job->out = out;
  job->entries.resize(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    job->entries[i] = {rows[i], places == nullptr ? i : places[i]};
  }
  const auto by_row = [](const Entry& a, const Entry& b) { return a.row < b.row; };
  if (!std::is_sorted(job->entries.begin(), job->entries.end(), by_row)) {
    std::sort(job->entries.begin(), job->entries.end(), by_row);
  }
  if (cache_.capacity() > 0) copy_cached(*job);
  const auto missed = static_cast<int64_t>(job->entries.size());
  job->unread = job->left = missed;
  const std::lock_guard<std::mutex> lock(lock_);
  job->id = next_job_++;
  counts_.rows += count;
  counts_.cached += count - missed;
  if (missed == 0 || is_closed_) {
    finished_.push_back({job->id, is_closed_ ? ECANCELED : 0});
    eventfd_write(event_, 1);
    return job->id;
  }
  const Entry head{head_, 0};
  job->cursor = std::lower_bound(job->entries.begin(), job->entries.end(), head, by_row) -
                job->entries.begin();
  jobs_.push_back(job);
  work_.notify_all();
  return job->id;
}

std::vector<DirectReads::Finished> DirectReads::finished() {
  const std::lock_guard<std::mutex> lock(lock_);
  eventfd_t ignored;
  eventfd_read(event_, &ignored);
  return std::exchange(finished_, {});
}

void DirectReads::set_gap(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(lock_);
  gap_ = bytes;
}

DirectReadCounts DirectReads::counts() const {
  const std::lock_guard<std::mutex> lock(lock_);
  return counts_;
}

// The next row in the order of the file, after the last also from its beginning. -1: none is left.
int64_t DirectReads::next_row() {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  for (int round = 0; round < 2; ++round) {
    int64_t next = kNone;
    for (const auto& job : jobs_) {
      if (job->cursor < static_cast<int64_t>(job->entries.size())) {
        next = std::min(next, job->entries[job->cursor].row);
      }
    }
    if (next != kNone) return next;
    for (const auto& job : jobs_) job->cursor = 0;
    head_ = 0;
  }
  return -1;
}

void DirectReads::begin_read(Read& out, int64_t row) const {
  const int64_t begin = region_.begin + row * region_.row_bytes;
  out = Read{};
  out.offset = down(begin);
  out.needed = begin + region_.row_bytes - out.offset;
  out.bytes = up(out.needed);
}

bool DirectReads::next_read(Read& out) {
  if (!again_.empty()) {
    out = std::move(again_.front());
    again_.pop_front();
    return true;
  }
  int64_t row = jobs_.empty() ? -1 : next_row();
  if (row < 0) return false;
  begin_read(out, row);
  for (const auto& job : jobs_) out.parts.push_back({job, job->cursor, job->cursor});
  while (true) {
    // Parts are in the order of jobs until the read is complete.
    int64_t next = std::numeric_limits<int64_t>::max();
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      auto& job = *jobs_[i];
      const auto size = static_cast<int64_t>(job.entries.size());
      while (job.cursor < size && job.entries[job.cursor].row == row && job.unread > 0) {
        ++job.cursor;
        --job.unread;
      }
      out.parts[i].end = job.cursor;
      if (job.cursor < size && job.unread > 0) next = std::min(next, job.entries[job.cursor].row);
    }
    head_ = row + 1;
    if (next == std::numeric_limits<int64_t>::max()) break;
    const int64_t begin = region_.begin + next * region_.row_bytes;
    const int64_t needed = begin + region_.row_bytes - out.offset;
    if (down(begin) > out.offset + out.bytes + gap_ || up(needed) > options_.max_bytes) break;
    out.needed = needed;
    out.bytes = up(needed);
    row = next;
  }
  const auto is_empty = [](const Part& part) { return part.first == part.end; };
  out.parts.erase(std::remove_if(out.parts.begin(), out.parts.end(), is_empty), out.parts.end());
  const auto has_none = [](const auto& job) { return job->unread == 0; };
  jobs_.erase(std::remove_if(jobs_.begin(), jobs_.end(), has_none), jobs_.end());
  return true;
}

void DirectReads::copy_rows(const Read& read) const {
  const auto bytes = static_cast<std::size_t>(region_.row_bytes);
  for (const auto& part : read.parts) {
    for (int64_t i = part.first; i < part.end; ++i) {
      const Entry& entry = part.job->entries[i];
      const int64_t begin = region_.begin + entry.row * region_.row_bytes - read.offset;
      copy_row(part.job->out + entry.place * region_.row_bytes, read.memory + begin, bytes);
    }
  }
}

// Only blocks with rows that were asked for: others may be read to save a read.
void DirectReads::cache_blocks(const Read& read) {
  const int64_t end = region_.begin + region_.num_rows * region_.row_bytes;
  const std::lock_guard<std::mutex> lock(cache_lock_);
  for (const auto& part : read.parts) {
    int64_t next = 0;
    for (int64_t i = part.first; i < part.end; ++i) {
      const int64_t begin = region_.begin + part.job->entries[i].row * region_.row_bytes;
      const int64_t last = (begin + region_.row_bytes - 1) / kBlock;
      for (int64_t block = std::max(next, begin / kBlock); block <= last; ++block) {
        const int64_t offset = block * kBlock;
        if (std::min(offset + kBlock, end) > read.offset + read.read) return;
        cache_.insert(block, read.memory + (offset - read.offset));
      }
      next = last + 1;
    }
  }
}

void DirectReads::copy_cached(Job& job) {
  auto& entries = job.entries;
  const auto count = static_cast<int64_t>(entries.size());
  int64_t missed = 0;
  for (int64_t first = 0; first < count; first += kRowsAtOnce) {
    const std::lock_guard<std::mutex> lock(cache_lock_);
    int64_t known = -1;  // block of `memory`: entries are in the order of the file
    const char* memory = nullptr;
    for (int64_t i = first; i < std::min(first + kRowsAtOnce, count); ++i) {
      const Entry entry = entries[i];
      int64_t from = region_.begin + entry.row * region_.row_bytes;
      char* out = job.out + entry.place * region_.row_bytes;
      int64_t left = region_.row_bytes;
      while (left > 0) {
        const int64_t block = from / kBlock;
        if (block != known) {
          known = block;
          memory = cache_.find(block);
        }
        if (memory == nullptr) break;
        const int64_t some = std::min(left, (block + 1) * kBlock - from);
        copy_row(out, memory + (from - block * kBlock), static_cast<std::size_t>(some));
        from += some;
        out += some;
        left -= some;
      }
      if (left > 0) entries[missed++] = entry;
    }
  }
  entries.resize(static_cast<std::size_t>(missed));
}

bool DirectReads::goes_on(Read& read, int64_t result, int& error) {
  error = 0;
  if (result < 0) {
    error = static_cast<int>(-result);
    if (++read.attempts > kAttempts) return false;
    if (error == EINTR || error == EAGAIN) return true;
    // Not all file systems that accept O_DIRECT can read so.
    if (error != EINVAL || !is_direct_.exchange(false)) return error == EINVAL && read.attempts < 3;
    fcntl(file_, F_SETFL, fcntl(file_, F_GETFL) & ~O_DIRECT);
    return true;
  }
  const int64_t total = read.read + result;
  if (total >= read.needed) {
    read.read = total;
    return false;
  }
  if (down(total) <= read.read) {  // the file ends before the rows do
    error = kTruncated;
    return false;
  }
  read.read = down(total);
  return true;
}

void DirectReads::complete(Read& read, int error) {
  int64_t rows = 0;
  for (const auto& part : read.parts) rows += part.end - part.first;
  ++counts_.reads;
  counts_.bytes += read.bytes;
  if (error != 0 && rows > 1 && !is_closed_) {  // another row may be the cause
    for (const auto& part : read.parts) {
      for (int64_t i = part.first; i < part.end; ++i) {
        Read single;
        begin_read(single, part.job->entries[i].row);
        single.parts.push_back({part.job, i, i + 1});
        again_.push_back(std::move(single));
      }
    }
    work_.notify_all();
    return;
  }
  for (const auto& part : read.parts) {
    auto& job = *part.job;
    job.left -= part.end - part.first;
    if (job.error == 0) job.error = error;
    if (job.left == 0) {
      finished_.push_back({job.id, job.error});
      eventfd_write(event_, 1);
    }
  }
}

void DirectReads::run_ring() {
  ReadPool pool(memory_, static_cast<int64_t>(memory_bytes_));
  std::vector<Read> reads(static_cast<std::size_t>(options_.depth));
  std::vector<uint64_t> unused, ended;
  std::vector<int> errors(reads.size());
  for (std::size_t i = reads.size(); i-- > 0;) unused.push_back(i);
  Read next;
  bool has_next = false;
  const auto push = [&](uint64_t i) {
    const Read& read = reads[i];
    ring_.push(i, read.memory + read.read, static_cast<unsigned>(read.bytes - read.read),
               read.offset + read.read);
  };
  std::unique_lock<std::mutex> lock(lock_);
  while (true) {
    while (!unused.empty() && !is_closed_ && (has_next || (has_next = next_read(next)))) {
      next.memory = pool.take(next.bytes);
      if (next.memory == nullptr) break;
      const uint64_t i = unused.back();
      unused.pop_back();
      reads[i] = std::move(next);
      has_next = false;
      push(i);
    }
    if (unused.size() == reads.size()) {
      if (is_closed_) return;
      work_.wait(lock);
      continue;
    }
    lock.unlock();
    // Several at a time: on a busy machine, each wait ends late.
    const auto in_flight = static_cast<unsigned>(reads.size() - unused.size());
    if (ring_.submit_and_wait(std::max(1U, in_flight / 4)) !=
        0) {  // the kernel lacks memory for the moment
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    IoRing::Completion done;
    while (ring_.pop(done)) {
      Read& read = reads[done.tag];
      if (goes_on(read, done.result, errors[done.tag])) {
        push(done.tag);
        continue;
      }
      if (errors[done.tag] == 0) {
        copy_rows(read);
        if (cache_.capacity() > 0) cache_blocks(read);
      }
      ended.push_back(done.tag);
    }
    lock.lock();
    for (const uint64_t i : ended) {
      complete(reads[i], errors[i]);
      pool.give_back(reads[i].memory);
      reads[i] = Read{};
      unused.push_back(i);
    }
    ended.clear();
  }
}

void DirectReads::run_thread(char* memory) {
  std::unique_lock<std::mutex> lock(lock_);
  while (!is_closed_) {
    Read read;
    if (!next_read(read)) {
      work_.wait(lock);
      continue;
    }
    lock.unlock();
    read.memory = memory;
    int error = 0;
    int64_t result;
    do {
      result = pread(file_, memory + read.read, static_cast<std::size_t>(read.bytes - read.read),
                     read.offset + read.read);
      if (result < 0) result = -errno;
    } while (goes_on(read, result, error));
    if (error == 0) {
      copy_rows(read);
      if (cache_.capacity() > 0) cache_blocks(read);
    }
    lock.lock();
    complete(read, error);
  }
}

}  // namespace khop::cpu
