#include "device_pages.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "pages.hpp"

namespace fake_cuda {
namespace {

constexpr int kOpen = PROT_READ | PROT_WRITE;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

DevicePages& device_pages() {
  static DevicePages* const all = new DevicePages;
  return *all;
}

void* DevicePages::map(std::size_t bytes, int file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (base_ == 0) {
    void* const reserved =
        mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return nullptr;
    base_ = next_ = reinterpret_cast<uintptr_t>(reserved);
  }
  bytes = page_after(bytes);
  if (bytes > base_ + kReserved - next_) return nullptr;
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  void* const memory = mmap(pointer(next_), bytes, kOpen, flags | MAP_FIXED, file, 0);
  if (memory == MAP_FAILED) return nullptr;
  pieces_[next_] = {bytes, 1};
  written_ += std::min(bytes, kOften);
  next_ += bytes;
  return memory;
}

// Nothing is ever mapped there again: whoever still uses it faults.
void DevicePages::unmap(uintptr_t begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto piece = pieces_.find(begin);
  mmap(pointer(begin), piece->second.bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  written_ -= std::min(piece->second.bytes, kOften);
  pieces_.erase(piece);
}

void DevicePages::hold(uintptr_t begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Piece& piece = pieces_.at(begin);
  if (piece.holders++ == 0 && !is_open_) mprotect(pointer(begin), piece.bytes, kOpen);
}

void DevicePages::let_go(uintptr_t begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Piece& piece = pieces_.at(begin);
  if (--piece.holders == 0 && !is_open_) mprotect(pointer(begin), piece.bytes, PROT_NONE);
}

void DevicePages::begin_work() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (num_working_++ > 0 || is_open_) return;
  protect_all(kOpen);
  is_open_ = true;
}

void DevicePages::end_work() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--num_working_ > 0 || ++num_ends_ <= written_ / kOften) return;
  protect_all(PROT_NONE);
  is_open_ = false;
  num_ends_ = 0;
}

// Of what nobody holds, and side by side at once: a call takes longer than to protect a few pages.
void DevicePages::protect_all(int rights) const {
  for (auto piece = pieces_.begin(); piece != pieces_.end();) {
    const uintptr_t begin = piece->first;
    uintptr_t end = begin;
    for (; piece != pieces_.end() && piece->first == end && piece->second.holders == 0; ++piece) {
      end += piece->second.bytes;
    }
    if (end > begin) {
      mprotect(pointer(begin), end - begin, rights);
    } else {
      ++piece;
    }
  }
}

}  // namespace fake_cuda
