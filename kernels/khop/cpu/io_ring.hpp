// The kernel's queue of reads (io_uring), by its system calls alone: liburing is not needed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace khop::cpu {

// For one thread. A container may forbid it (ENOSYS, EPERM): `open` then returns false.
class IoRing {
 public:
  struct Completion {
    uint64_t tag;
    int result;  // bytes, or a negative error
  };

  IoRing() = default;
  ~IoRing() { close(); }
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;

  // `depth` reads can be in flight, of one file, into `memory`. The memory is registered with the
  // kernel if the limit of locked memory allows, which saves looking up its pages for each read.
  bool open(unsigned depth, int file, char* memory, std::size_t bytes);
  void close();

  // No more reads than `depth` may be between `push` and their completion.
  void push(uint64_t tag, char* to, unsigned bytes, int64_t offset);
  // Hands the reads over, and waits until `count` are complete. Returns 0 or an error's number.
  int submit_and_wait(unsigned count);
  bool pop(Completion& out);

 private:
  char* submitted_ = nullptr;  // the kernel's memory: the queues' heads, tails and completions
  std::size_t submitted_bytes_ = 0;
  char* completed_ = nullptr;
  std::size_t completed_bytes_ = 0;
  char* entries_ = nullptr;
  std::size_t entries_bytes_ = 0;
  unsigned *submit_tail_ = nullptr, *complete_head_ = nullptr, *complete_tail_ = nullptr;
  unsigned submit_mask_ = 0, complete_mask_ = 0, pushed_ = 0;
  char* completions_ = nullptr;
  unsigned* order_ = nullptr;
  int ring_ = -1, file_ = -1;
  bool is_registered_ = false;
};

}  // namespace khop::cpu
