// Memory of reads in flight.
#pragma once

#include <cstdint>
#include <deque>

namespace khop::cpu {

// Memory of reads in flight, which end in about the order in which they begin.
class ReadPool {
 public:
  ReadPool(char* memory, int64_t bytes) : memory_(memory), bytes_(bytes) {}

  // Null if there is no room.
  char* take(int64_t bytes) {
    int64_t begin = used_.empty() ? 0 : used_.back().end;
    const int64_t first = used_.empty() ? bytes_ : used_.front().begin;
    if (begin > first || used_.empty()) {  // free: from begin to the end, and before the first
      if (begin + bytes > bytes_) begin = 0;
    }
    const bool wraps = !used_.empty() && begin <= first;
    if (begin + bytes > bytes_ || (wraps && begin + bytes >= first)) return nullptr;
    used_.push_back({begin, begin + bytes, false});
    return memory_ + begin;
  }

  void give_back(const char* memory) {
    for (auto& region : used_) {
      if (memory_ + region.begin == memory) region.is_free = true;
    }
    while (!used_.empty() && used_.front().is_free) used_.pop_front();
  }

 private:
  struct Region {
    int64_t begin, end;
    bool is_free;
  };
  char* memory_;
  int64_t bytes_;
  std::deque<Region> used_;
};

}  // namespace khop::cpu
