#include "khop/cpu/lookahead_cache.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "khop/core/node_table.hpp"
#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {
namespace {

constexpr int64_t kMaxCapacity = int64_t{1} << 30;
constexpr int64_t kMaxEntries = std::numeric_limits<int32_t>::max();
constexpr int64_t kAhead = 16;
constexpr uint8_t kMaxCount = 63;
// A queue of more links is compacted when half of them are stale.
constexpr int64_t kFewLinks = 64;

}  // namespace

LookaheadCache::LookaheadCache(int64_t capacity, int64_t num_rows)
    : capacity_(capacity), keeps_all_(num_rows <= capacity) {
  if (capacity < 0 || capacity > kMaxCapacity) {
    throw std::invalid_argument("a cache has 0 to 2^30 rows, not " + std::to_string(capacity));
  }
  clear();
}

void LookaheadCache::clear() {
  num_ranked_ = num_idle_ = num_open_ = num_entries_ = num_slots_ = floor_ = 0;
  first_batch_ += static_cast<int64_t>(batches_.size());
  free_entry_ = free_use_ = -1;
  batches_.clear();
  free_slots_.clear();
  uses_.clear();
  table_.resize(int64_t{1} << bits_);
  std::fill_n(table_.data(), table_.size(), -1);
  entries_.clear();
  for (Queue& queue : ranks_) queue.clear();
}

int64_t LookaheadCache::nbytes() const {
  int64_t bytes = entries_.capacity() * static_cast<int64_t>(sizeof(Entry)) +
                  uses_.capacity() * static_cast<int64_t>(sizeof(Use)) +
                  (table_.capacity() + free_slots_.capacity() + missed_.capacity()) * 4;
  for (const Queue& queue : ranks_) bytes += queue.rows.capacity() * 4;
  for (const auto* batches : {&batches_, &spare_}) {
    for (const Batch& batch : *batches) {
      bytes += (batch.entries.capacity() + batch.queue.rows.capacity()) * 4;
    }
  }
  return bytes;
}

int64_t LookaheadCache::announce(const int64_t* ids, int64_t count) {
  if (count > kMaxEntries - entries_.size() - 1 || count > kMaxEntries - uses_.size()) {
    throw std::length_error("too many rows are announced at the same time");
  }
  grow_table(num_entries_ + count);
  const int64_t number = first_batch_ + static_cast<int64_t>(batches_.size());
  Batch& batch = batches_.emplace_back();
  if (!spare_.empty()) {
    batch = std::move(spare_.back());
    spare_.pop_back();
  }
  batch.entries.resize(count);
  batch.queue.clear();
  batch.is_open = true;
  ++num_open_;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch_line(&table_[home(ids[i + kAhead])]);
    if (i + kAhead / 2 < count) {
      const int32_t ahead = table_[home(ids[i + kAhead / 2])];
      if (ahead >= 0) prefetch_line_to_write(&entries_[ahead]);
    }
    if (!keeps_all_ && i + kAhead / 4 < count) {
      const int32_t ahead = table_[home(ids[i + kAhead / 4])];
      const int32_t use = ahead >= 0 ? entries_[ahead].last_use : -1;
      if (use >= 0) prefetch_line_to_write(&uses_[use]);
    }
    const int32_t entry = find_or_add(ids[i]);
    batch.entries[i] = entry;
    if (!keeps_all_) add_use(entry, number);
  }
  return number;
}

void LookaheadCache::take(int64_t number, Taken& out) {
  Batch& batch = open_batch(number);
  const int64_t count = batch.entries.size();
  ++stamp_;
  missed_.clear();
  out.hit_positions.reserve(count);
  out.hit_slots.reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch_line_to_write(&entries_[batch.entries[i + kAhead]]);
    if (!keeps_all_ && i + kAhead / 2 < count) {
      const int32_t use = entries_[batch.entries[i + kAhead / 2]].first_use;
      if (use >= 0) prefetch_line_to_write(&uses_[use]);
    }
    if (!keeps_all_ &&
        i + kAhead / 4 < count) {  // an announced row has a use, and perhaps a next one
      const int32_t use = entries_[batch.entries[i + kAhead / 4]].first_use;
      const int32_t next = use >= 0 ? uses_[use].next : -1;
      if (next >= 0) prefetch_line(&uses_[next]);
    }
    const int32_t index = batch.entries[i];
    Entry& entry = entries_[index];
    if (entry.stamp == stamp_) {
      if (entry.mark < 0) {
        out.hit_positions.push_back(i);
        out.hit_slots.push_back(entry.slot);
      } else {
        out.repeats.push_back(i);
        out.originals.push_back(out.positions[entry.mark]);
      }
      continue;
    }
    entry.stamp = stamp_;
    entry.count = std::min<uint8_t>(static_cast<uint8_t>(entry.count + 1), kMaxCount);
    if (entry.slot >= 0) {
      entry.mark = -1;
      out.hit_positions.push_back(i);
      out.hit_slots.push_back(entry.slot);
      if (!keeps_all_) unlink(index);
    } else {
      entry.mark = static_cast<int32_t>(missed_.size());
      missed_.push_back(index);
      out.misses.push_back(entry.id);
      out.positions.push_back(i);
    }
    if (!keeps_all_) {
      remove_use(index, number);
      link(index);
    } else if (!entry.is_ranked && num_ranked_ < capacity_) {
      entry.is_ranked = true;
      ++num_ranked_;
    }
  }
  evict(num_ranked_ - capacity_);
  for (int64_t i = 0; i < missed_.size(); ++i) {
    if (i + kAhead / 4 < missed_.size()) prefetch_line(&entries_[missed_[i + kAhead / 4]]);
    Entry& entry = entries_[missed_[i]];
    if (entry.is_ranked) {
      if (free_slots_.size() > 0) {
        entry.slot = free_slots_[free_slots_.size() - 1];
        free_slots_.resize(free_slots_.size() - 1);
      } else {
        entry.slot = static_cast<int32_t>(num_slots_++);
      }
    }
    out.slots.push_back(entry.slot);
  }
  close(number);
}

void LookaheadCache::forget(int64_t number) {
  Batch& batch = open_batch(number);
  ++stamp_;
  for (int64_t i = 0; i < batch.entries.size() && !keeps_all_; ++i) {
    const int32_t index = batch.entries[i];
    Entry& entry = entries_[index];
    if (entry.stamp == stamp_) continue;
    entry.stamp = stamp_;
    const bool is_ranked = entry.is_ranked;
    if (is_ranked) unlink(index);
    remove_use(index, number);
    if (is_ranked) {
      link(index);
    } else if (entry.first_use < 0) {
      drop(index);
    }
  }
  close(number);
}

void LookaheadCache::discard(const int64_t* ids, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t index = table_[find(ids[i])];
    if (index >= 0 && entries_[index].is_ranked) evict_one(index);
  }
}

LookaheadCache::Batch& LookaheadCache::open_batch(int64_t number) {
  const int64_t index = number - first_batch_;
  if (index < 0 || index >= static_cast<int64_t>(batches_.size()) ||
      !batches_[static_cast<std::size_t>(index)].is_open) {
    throw std::out_of_range("batch " + std::to_string(number) + " is not announced");
  }
  return batches_[static_cast<std::size_t>(index)];
}

void LookaheadCache::close(int64_t number) {
  Batch& batch = open_batch(number);
  batch.is_open = false;
  --num_open_;
  Batch& spare = spare_.emplace_back();
  std::swap(spare.entries, batch.entries);
  std::swap(spare.queue, batch.queue);
  while (!batches_.empty() && !batches_.front().is_open) {
    batches_.pop_front();
    ++first_batch_;
  }
}

int64_t LookaheadCache::home(int64_t id) const {
  return static_cast<int64_t>(slot_index(hash_id(static_cast<uint64_t>(id)), bits_));
}

// Position in the table of a row, or of the gap where it belongs.
int64_t LookaheadCache::find(int64_t id) const {
  const int64_t mask = table_.size() - 1;
  int64_t at = home(id);
  while (table_[at] >= 0 && entries_[table_[at]].id != id) at = (at + 1) & mask;
  return at;
}

int32_t LookaheadCache::find_or_add(int64_t id) {
  const int64_t at = find(id);
  if (table_[at] >= 0) return table_[at];
  ++num_entries_;
  return table_[at] = new_entry(id);
}

// Makes room for `count` rows: the table is at most half full.
void LookaheadCache::grow_table(int64_t count) {
  if (2 * count <= table_.size()) return;
  std::vector<int32_t> rows;
  rows.reserve(static_cast<std::size_t>(num_entries_));
  for (int64_t i = 0; i < table_.size(); ++i) {
    if (table_[i] >= 0) rows.push_back(table_[i]);
  }
  while ((int64_t{1} << bits_) < 2 * count) ++bits_;
  table_.clear();
  table_.resize(int64_t{1} << bits_);
  std::fill_n(table_.data(), table_.size(), -1);
  const int64_t mask = table_.size() - 1;
  for (const int32_t row : rows) {
    int64_t at = home(entries_[row].id);
    while (table_[at] >= 0) at = (at + 1) & mask;
    table_[at] = row;
  }
}

int32_t LookaheadCache::new_entry(int64_t id) {
  int32_t index = free_entry_;
  if (index >= 0) {
    free_entry_ = entries_[index].first_use;
  } else {
    index = static_cast<int32_t>(entries_.size());
    entries_.extend(1);
  }
  entries_[index] = {id, -1, -1, -1, -1, -1, -1, stamp_ - 1, 0, false};
  return index;
}

// Removes a row that is neither cached nor announced.
void LookaheadCache::drop(int32_t index) {
  const int64_t mask = table_.size() - 1;
  int64_t hole = home(entries_[index].id);
  while (table_[hole] != index) hole = (hole + 1) & mask;
  // Rows behind it move up, unless they are at home between the hole and themselves.
  for (int64_t at = (hole + 1) & mask; table_[at] >= 0; at = (at + 1) & mask) {
    const int64_t distance = (at - home(entries_[table_[at]].id)) & mask;
    if (distance >= ((at - hole) & mask)) {
      table_[hole] = table_[at];
      hole = at;
    }
  }
  table_[hole] = -1;
  --num_entries_;
  entries_[index].first_use = free_entry_;
  free_entry_ = index;
}

void LookaheadCache::add_use(int32_t index, int64_t batch) {
  Entry& entry = entries_[index];
  if (entry.last_use >= 0 && uses_[entry.last_use].batch == batch) return;
  const bool moves = entry.is_ranked && entry.first_use < 0;
  if (moves) unlink(index);
  int32_t use = free_use_;
  if (use >= 0) {
    free_use_ = uses_[use].next;
  } else {
    use = static_cast<int32_t>(uses_.size());
    uses_.extend(1);
  }
  uses_[use] = {batch, -1};
  if (entry.last_use >= 0) {
    uses_[entry.last_use].next = use;
  } else {
    entry.first_use = use;
  }
  entry.last_use = use;
  if (moves) link(index);
}

// The row is in no list. Batches that are taken out of turn are not the first use.
void LookaheadCache::remove_use(int32_t index, int64_t batch) {
  Entry& entry = entries_[index];
  int32_t before = -1;
  int32_t use = entry.first_use;
  while (uses_[use].batch != batch) {
    before = use;
    use = uses_[use].next;
  }
  const int32_t after = uses_[use].next;
  (before < 0 ? entry.first_use : uses_[before].next) = after;
  if (after < 0) entry.last_use = before;
  uses_[use].next = free_use_;
  free_use_ = use;
}

void LookaheadCache::link(int32_t index) {
  Entry& entry = entries_[index];
  entry.is_ranked = true;
  ++num_ranked_;
  if (entry.first_use < 0) {
    ++num_idle_;
    entry.queue = static_cast<int32_t>((floor_ + entry.count) % kLevels);
  } else {
    const int64_t batch = uses_[entry.first_use].batch;
    entry.queue = kLevels + static_cast<int32_t>(batch & kBatchMask);
  }
  Queue& queue = queue_of(entry.queue);
  if (queue.rows.size() == queue.rows.capacity() &&
      queue.rows.size() > 2 * queue.num_live + kFewLinks) {
    compact(queue, entry.queue);
  }
  entry.position = static_cast<int32_t>(queue.rows.size());
  queue.rows.push_back(index);
  ++queue.num_live;
}

// The row stays in its queue, where its link is stale from now on.
void LookaheadCache::unlink(int32_t index) {
  Entry& entry = entries_[index];
  entry.is_ranked = false;
  --num_ranked_;
  if (keeps_all_) return;
  --queue_of(entry.queue).num_live;
  if (entry.first_use < 0) --num_idle_;
}

LookaheadCache::Queue& LookaheadCache::queue_of(int32_t number) {
  if (number < kLevels) return ranks_[static_cast<std::size_t>(number)];
  const int64_t index = (number - kLevels - first_batch_) & kBatchMask;
  return batches_[static_cast<std::size_t>(index)].queue;
}

bool LookaheadCache::is_live(int32_t index, int32_t queue, int64_t position) const {
  const Entry& entry = entries_[index];
  return entry.is_ranked && entry.queue == queue && entry.position == position;
}

// Removes the stale links of a queue.
void LookaheadCache::compact(Queue& queue, int32_t number) {
  int64_t kept = 0;
  for (int64_t i = queue.begin; i < queue.rows.size(); ++i) {
    const int32_t index = queue.rows[i];
    if (!is_live(index, number, i)) continue;
    entries_[index].position = static_cast<int32_t>(kept);
    queue.rows[kept++] = index;
  }
  queue.rows.resize(kept);
  queue.begin = 0;
}

void LookaheadCache::evict(int64_t count) {
  while (count > 0 && num_idle_ > 0) {
    // Ranks are floor_ to floor_ + 63: none is below the last that was evicted.
    while (ranks_[static_cast<std::size_t>(floor_ % kLevels)].num_live == 0) ++floor_;
    count -= evict_first(static_cast<int32_t>(floor_ % kLevels), count);
  }
  for (std::size_t i = batches_.size(); count > 0;) {
    while (batches_[i - 1].queue.num_live == 0) --i;
    const int64_t batch = first_batch_ + static_cast<int64_t>(i) - 1;
    count -= evict_first(kLevels + static_cast<int32_t>(batch & kBatchMask), count);
  }
}

// Evicts up to `count` rows, the first ones of a queue, and returns how many.
int64_t LookaheadCache::evict_first(int32_t number, int64_t count) {
  Queue& queue = queue_of(number);
  const int64_t end = queue.rows.size();
  int64_t evicted = 0;
  for (int64_t& i = queue.begin; evicted < count && queue.num_live > 0; ++i) {
    if (i + kAhead < end) prefetch_line_to_write(&entries_[queue.rows[i + kAhead]]);
    if (i + kAhead / 2 < end) {
      prefetch_line_to_write(&table_[home(entries_[queue.rows[i + kAhead / 2]].id)]);
    }
    if (!is_live(queue.rows[i], number, i)) continue;
    evict_one(queue.rows[i]);
    ++evicted;
  }
  return evicted;
}

void LookaheadCache::evict_one(int32_t index) {
  Entry& entry = entries_[index];
  unlink(index);
  if (entry.slot >= 0) free_slots_.push_back(entry.slot);
  entry.slot = -1;
  if (entry.first_use < 0 && !keeps_all_) drop(index);
}

}  // namespace khop::cpu
