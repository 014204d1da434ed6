// Orders of the slots of a cache, by which it evicts: least recently used, and SIEVE.
//
// `insert` returns the slot of a new entry: a free one, or the one that is evicted. The user knows
// which entry a slot has. A slot is 12 bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "khop/cpu/buffer.hpp"

namespace khop::cpu {

// Slots from the oldest to the newest.
class SlotList {
 public:
  static constexpr int64_t kMaxSlots = int64_t{1} << 30;

  SlotList() = default;
  explicit SlotList(int64_t capacity) : capacity_(std::clamp<int64_t>(capacity, 0, kMaxSlots)) {
    links_.resize(capacity_);
  }

  int64_t capacity() const { return capacity_; }

 protected:
  struct Link {
    int32_t newer, older;
    bool was_used;
  };

  void append(int32_t slot) {
    links_[slot] = {-1, newest_, false};
    (newest_ < 0 ? oldest_ : links_[newest_].newer) = slot;
    newest_ = slot;
  }

  void remove(int32_t slot) {
    const Link& link = links_[slot];
    (link.newer < 0 ? newest_ : links_[link.newer].older) = link.older;
    (link.older < 0 ? oldest_ : links_[link.older].newer) = link.newer;
  }

  int64_t capacity_ = 0, num_slots_ = 0;
  int32_t newest_ = -1, oldest_ = -1;
  Buffer<Link> links_;
};

// Evicts the entry whose last use is longest ago.
class LruSlots : public SlotList {
 public:
  using SlotList::SlotList;

  void use(int32_t slot) {
    remove(slot);
    append(slot);
  }

  int32_t insert() {
    int32_t slot = oldest_;
    if (num_slots_ < capacity_) {
      slot = static_cast<int32_t>(num_slots_++);
    } else {
      remove(slot);
    }
    append(slot);
    return slot;
  }
};

// Evicts by SIEVE (Zhang et al., SIEVE is Simpler than LRU, NSDI 2024): a hand moves from old to
// new entries, passes those that were used since it was there, and evicts the next.
class SieveSlots : public SlotList {
 public:
  using SlotList::SlotList;

  void use(int32_t slot) { links_[slot].was_used = true; }

  int32_t insert() {
    int32_t slot;
    if (num_slots_ < capacity_) {
      slot = static_cast<int32_t>(num_slots_++);
    } else {
      slot = hand_ < 0 ? oldest_ : hand_;
      while (links_[slot].was_used) {
        links_[slot].was_used = false;
        slot = links_[slot].newer < 0 ? oldest_ : links_[slot].newer;
      }
      hand_ = links_[slot].newer;
      remove(slot);
    }
    append(slot);
    return slot;
  }

 private:
  int32_t hand_ = -1;
};

}  // namespace khop::cpu
