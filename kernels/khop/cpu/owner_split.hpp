// Owners of ids: parts own contiguous ranges.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/cpu/buffer.hpp"

namespace khop::cpu {

// Ids grouped by owner; within a group they keep their order.
struct OwnerSplit {
  Buffer<int32_t> owners;        // an id each
  Buffer<int64_t> ids;           // grouped
  Buffer<int64_t> places;        // where each grouped id stood
  std::vector<int64_t> offsets;  // group p is [offsets[p], offsets[p + 1])
};

// bounds[p] .. bounds[p + 1] - 1 are part p's ids. Throws std::out_of_range for any other id.
void split_by_owner(const int64_t* ids, int64_t count, const std::vector<int64_t>& bounds,
                    OwnerSplit& out);

// A read-only map from id to its place in a list, for the hot rows that a part keeps of others.
class IdIndex {
 public:
  IdIndex(const int64_t* ids, int64_t count);
  // Place of `id`, or -1.
  int64_t find(int64_t id) const;
  void prefetch(int64_t id) const;
  int64_t size() const { return size_; }

 private:
  struct Entry {
    int64_t id;
    int64_t place;
  };
  int64_t slot_of(int64_t id) const;

  int64_t size_;
  int bits_;
  Buffer<Entry> slots_;
};

}  // namespace khop::cpu
