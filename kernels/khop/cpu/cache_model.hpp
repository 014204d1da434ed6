// Misses that caches of other rules would have had, of the same number of rows.
//
// A cache of many rows is modelled by a sample of the ids, chosen by a hash, and a cache that is
// smaller by the same factor (SHARDS: Waldspurger et al., Efficient MRC Construction with SHARDS,
// FAST 2015). Each id costs a hash, and each sampled id a look-up in a small table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "khop/core/node_table.hpp"
#include "khop/cpu/slot_lists.hpp"

namespace khop::cpu {

template <class Slots>
class ModelledCache {
 public:
  explicit ModelledCache(int64_t capacity) : slots_(capacity), id_of_(slots_.capacity()) {
    std::fill_n(id_of_.data(), id_of_.size(), -1);
  }

  // Returns true if the id is cached, which it is afterwards.
  bool ask(int64_t id) {
    if (slots_.capacity() == 0) return false;
    const auto known = slot_of_.find(id);
    if (known != slot_of_.end()) {
      slots_.use(known->second);
      return true;
    }
    const int32_t slot = slots_.insert();
    if (id_of_[slot] >= 0) slot_of_.erase(id_of_[slot]);
    id_of_[slot] = id;
    slot_of_.emplace(id, slot);
    return false;
  }

 private:
  Slots slots_;
  Buffer<int64_t> id_of_;  // of each slot, or -1
  std::unordered_map<int64_t, int32_t> slot_of_;
};

class CacheModel {
 public:
  // Of a cache of `capacity` rows, by about `most` rows.
  CacheModel(int64_t capacity, int64_t most)
      : shift_(shift_of(capacity, most)), lru_(capacity >> shift_), sieve_(capacity >> shift_) {}

  // The ids of a batch, from 0. Those that repeat are hits.
  void ask(const int64_t* ids, int64_t count) {
    const uint64_t rest = (uint64_t{1} << shift_) - 1;
    for (int64_t i = 0; i < count; ++i) {
      if ((hash_id(static_cast<uint64_t>(ids[i])) >> 32 & rest) != 0) continue;
      lru_misses_ += !lru_.ask(ids[i]);
      sieve_misses_ += !sieve_.ask(ids[i]);
    }
  }

  // Exact if the factor is 1, else estimates.
  int64_t factor() const { return int64_t{1} << shift_; }
  int64_t lru_misses() const { return lru_misses_ << shift_; }
  int64_t sieve_misses() const { return sieve_misses_ << shift_; }

 private:
  static int shift_of(int64_t capacity, int64_t most) {
    int shift = 0;
    while (capacity >> shift > most) ++shift;
    return shift;
  }

  int shift_;
  ModelledCache<LruSlots> lru_;
  ModelledCache<SieveSlots> sieve_;
  int64_t lru_misses_ = 0, sieve_misses_ = 0;
};

}  // namespace khop::cpu
