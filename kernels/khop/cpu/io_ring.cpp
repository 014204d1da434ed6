#include "khop/cpu/io_ring.hpp"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace khop::cpu {
namespace {

char* map_queue(int ring, std::size_t bytes, uint64_t offset) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
                      static_cast<off_t>(offset));
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_DONTFORK);
  return static_cast<char*>(memory);
}

void unmap(char*& memory, std::size_t bytes) {
  if (memory != nullptr) munmap(memory, bytes);
  memory = nullptr;
}

}  // namespace

bool IoRing::open(unsigned depth, int file, char* memory, std::size_t bytes) {
  io_uring_params params{};
  params.flags = IORING_SETUP_CLAMP;
  ring_ = static_cast<int>(syscall(__NR_io_uring_setup, depth, &params));
  if (ring_ < 0) return false;
  file_ = file;
  submitted_bytes_ = params.sq_off.array + params.sq_entries * sizeof(unsigned);
  completed_bytes_ = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
  submitted_ = map_queue(ring_, submitted_bytes_, IORING_OFF_SQ_RING);
  completed_ = map_queue(ring_, completed_bytes_, IORING_OFF_CQ_RING);
  entries_ = map_queue(ring_, entries_bytes_, IORING_OFF_SQES);
  if (submitted_ == nullptr || completed_ == nullptr || entries_ == nullptr ||
      params.sq_entries < depth) {
    close();
    return false;
  }
  const auto in = [](char* queue, unsigned offset) {
    return reinterpret_cast<unsigned*>(queue + offset);
  };
  submit_tail_ = in(submitted_, params.sq_off.tail);
  submit_mask_ = *in(submitted_, params.sq_off.ring_mask);
  order_ = in(submitted_, params.sq_off.array);
  complete_head_ = in(completed_, params.cq_off.head);
  complete_tail_ = in(completed_, params.cq_off.tail);
  complete_mask_ = *in(completed_, params.cq_off.ring_mask);
  completions_ = completed_ + params.cq_off.cqes;
  const iovec region{memory, bytes};
  is_registered_ =
      syscall(__NR_io_uring_register, ring_, IORING_REGISTER_BUFFERS, &region, 1U) == 0;
  return true;
}

void IoRing::close() {
  unmap(submitted_, submitted_bytes_);
  unmap(completed_, completed_bytes_);
  unmap(entries_, entries_bytes_);
  if (ring_ >= 0) ::close(ring_);
  ring_ = -1;
}

void IoRing::push(uint64_t tag, char* to, unsigned bytes, int64_t offset) {
  const unsigned tail = *submit_tail_;  // this thread alone writes it
  const unsigned slot = tail & submit_mask_;
  auto* entry = reinterpret_cast<io_uring_sqe*>(entries_) + slot;
  std::memset(entry, 0, sizeof *entry);
  entry->opcode = is_registered_ ? IORING_OP_READ_FIXED : IORING_OP_READ;
  entry->fd = file_;
  entry->addr = reinterpret_cast<uint64_t>(to);
  entry->len = bytes;
  entry->off = static_cast<uint64_t>(offset);
  entry->user_data = tag;
  order_[slot] = slot;
  __atomic_store_n(submit_tail_, tail + 1, __ATOMIC_RELEASE);
  ++pushed_;
}

int IoRing::submit_and_wait(unsigned count) {
  while (true) {
    const long taken = syscall(__NR_io_uring_enter, ring_, pushed_, count, IORING_ENTER_GETEVENTS,
                               nullptr, std::size_t{0});
    if (taken >= 0) {
      pushed_ -= static_cast<unsigned>(taken);
      return 0;
    }
    if (errno != EINTR) return errno;
  }
}

bool IoRing::pop(Completion& out) {
  const unsigned head = *complete_head_;  // this thread alone writes it
  if (head == __atomic_load_n(complete_tail_, __ATOMIC_ACQUIRE)) return false;
  const auto& done = reinterpret_cast<const io_uring_cqe*>(completions_)[head & complete_mask_];
  out = {done.user_data, done.res};
  __atomic_store_n(complete_head_, head + 1, __ATOMIC_RELEASE);
  return true;
}

}  // namespace khop::cpu
