#include "khop/cpu/owner_split.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "khop/core/node_table.hpp"
#include "khop/cpu/part_of.hpp"
#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {

void split_by_owner(const int64_t* ids, int64_t count, const std::vector<int64_t>& bounds,
                    OwnerSplit& out) {
  const std::size_t num_parts = bounds.size() - 1;
  out.owners.clear();
  out.ids.clear();
  out.places.clear();
  out.offsets.assign(num_parts + 1, 0);
  int32_t* owners = out.owners.extend(count);
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < bounds.front() || ids[i] >= bounds.back()) {
      throw std::out_of_range(
          "node " + std::to_string(ids[i]) + " belongs to no partition: ids run from " +
          std::to_string(bounds.front()) + " to " + std::to_string(bounds.back() - 1));
    }
    owners[i] = static_cast<int32_t>(part_of(ids[i], bounds.data(), num_parts));
    ++out.offsets[static_cast<std::size_t>(owners[i]) + 1];
  }
  for (std::size_t p = 0; p < num_parts; ++p) out.offsets[p + 1] += out.offsets[p];

  std::vector<int64_t> cursor(out.offsets.begin(), out.offsets.end() - 1);
  int64_t* grouped = out.ids.extend(count);
  int64_t* places = out.places.extend(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = cursor[static_cast<std::size_t>(owners[i])]++;
    grouped[at] = ids[i];
    places[at] = i;
  }
}

IdIndex::IdIndex(const int64_t* ids, int64_t count) : size_(count), bits_(4) {
  while ((int64_t{1} << bits_) < 2 * count) ++bits_;
  slots_.resize(int64_t{1} << bits_);
  std::fill_n(slots_.data(), slots_.size(), Entry{-1, -1});
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0) throw std::invalid_argument("a cached id is negative");
    const int64_t slot = slot_of(ids[i]);
    if (slots_[slot].id == ids[i]) throw std::invalid_argument("a cached id stands twice");
    slots_[slot] = {ids[i], i};
  }
}

int64_t IdIndex::slot_of(int64_t id) const {
  const int64_t mask = slots_.size() - 1;
  int64_t slot = static_cast<int64_t>(slot_index(hash_id(static_cast<uint64_t>(id)), bits_));
  while (slots_[slot].id != -1 && slots_[slot].id != id) slot = (slot + 1) & mask;
  return slot;
}

int64_t IdIndex::find(int64_t id) const {
  if (id < 0) return -1;
  return slots_[slot_of(id)].place;
}

void IdIndex::prefetch(int64_t id) const {
  prefetch_line(
      &slots_[static_cast<int64_t>(slot_index(hash_id(static_cast<uint64_t>(id)), bits_))]);
}

}  // namespace khop::cpu
