#include "khop/device/gather_table.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "khop/cpu/gather.hpp"

namespace khop::device {
namespace {

constexpr int64_t kStagingBytes = int64_t{16} << 20;
constexpr int kUploadThreads = 4;

std::vector<int64_t> checked(std::vector<int64_t> ids, int64_t num_rows) {
  std::vector<bool> seen(static_cast<std::size_t>(num_rows), false);
  for (const int64_t id : ids) {
    if (id < 0 || id >= num_rows) {
      throw std::invalid_argument("hot row " + std::to_string(id) + " is outside a table of " +
                                  std::to_string(num_rows) + " rows");
    }
    if (seen[static_cast<std::size_t>(id)]) {
      throw std::invalid_argument("hot row " + std::to_string(id) + " stands twice");
    }
    seen[static_cast<std::size_t>(id)] = true;
  }
  return ids;
}

}  // namespace

DeviceGroup::DeviceGroup(std::vector<std::shared_ptr<Device>> devices)
    : devices_(std::move(devices)) {
  if (devices_.empty()) throw std::invalid_argument("a group needs at least one device");
  for (const auto& device : devices_) {
    for (const auto& peer : devices_) {
      if (peer != device) device->reach(*peer);
    }
  }
}

int64_t DeviceGroup::position_of(const Device& device) const {
  for (int64_t i = 0; i < size(); ++i) {
    if (this->device(i).get() == &device) return i;
  }
  return -1;
}

HotRows::HotRows(std::shared_ptr<const DeviceGroup> group, const HostRows& table,
                 std::optional<std::vector<int64_t>> ids, int64_t replicated, int64_t own)
    : group_(std::move(group)),
      num_table_rows_(table.num_rows),
      row_bytes_(table.row_bytes),
      ids_(std::move(ids)),
      count_(table.num_rows),
      replicated_(replicated),
      own_(own) {
  if (ids_.has_value()) {
    ids_ = checked(std::move(*ids_), table.num_rows);
    count_ = static_cast<int64_t>(ids_->size());
    if (count_ > std::numeric_limits<int32_t>::max()) {
      throw std::invalid_argument("the hot part of a table cannot have more than 2^31 - 1 rows");
    }
  }
  if (replicated < 0 || replicated > count_) {
    throw std::invalid_argument("replicated must be from 0 to the " + std::to_string(count_) +
                                " rows in device memory (got " + std::to_string(replicated) + ")");
  }
}

HotRows::HotRows(std::shared_ptr<Device> device, std::vector<SeenMemory> parts, int64_t own,
                 const HostRows& table, std::optional<std::vector<int64_t>> ids, int64_t replicated)
    : HotRows(
          std::make_shared<DeviceGroup>(std::vector<std::shared_ptr<Device>>{std::move(device)}),
          table, std::move(ids), replicated, own) {
  const auto num_parts = static_cast<int64_t>(parts.size());
  if (own < 0 || own >= num_parts) {
    throw std::invalid_argument("part " + std::to_string(own) + " is not one of " +
                                std::to_string(num_parts));
  }
  for (int64_t part = 0; part < num_parts; ++part) {
    const SeenMemory& memory = parts[static_cast<std::size_t>(part)];
    const int64_t needed = rows_of(part, num_parts) * row_bytes_;
    if (memory.bytes < static_cast<std::size_t>(needed)) {
      throw std::invalid_argument("part " + std::to_string(part) + " of the hot rows needs " +
                                  std::to_string(needed) + " bytes (got " +
                                  std::to_string(memory.bytes) + ")");
    }
    parts_.push_back(memory.data);
  }
}

HotRows::HotRows(std::shared_ptr<const DeviceGroup> group, const HostRows& table,
                 std::optional<std::vector<int64_t>> ids, int64_t replicated)
    : HotRows(std::move(group), table, std::move(ids), replicated, -1) {
  const int64_t wanted = std::min(kStagingBytes, count_ * row_bytes_);
  // A table without rows may have rows of any width.
  const int64_t one_row = count_ == 0 ? 0 : row_bytes_;
  PinnedMemory staging(group_->device(0), static_cast<std::size_t>(std::max(wanted, one_row)));
  try {
    for (int64_t part = 0; part < group_->size(); ++part) {
      const auto bytes = static_cast<std::size_t>(rows_of(part, group_->size()) * row_bytes_);
      parts_.push_back(allocate(*group_->device(part), bytes));
      copy_part(table, part, staging);
    }
  } catch (...) {
    release();
    throw;
  }
}

HotRows::~HotRows() { release(); }

int64_t HotRows::part_of(const Device& device) const {
  const int64_t position = group_->position_of(device);
  return own_ >= 0 && position == 0 ? own_ : position;
}

int64_t HotRows::rows_of(int64_t part, int64_t num_parts) const {
  return replicated_ +
         std::max<int64_t>(count_ - replicated_ - part + num_parts - 1, 0) / num_parts;
}

// What only its own device reads may come from the device's allocator; peers
// read what the driver gave.
void* HotRows::allocate(Device& device, std::size_t bytes) const {
  return group_->size() == 1 ? device.allocate(bytes) : device.allocate_for_peers(bytes);
}

// Through page-locked memory, a chunk at a time. Copying from the table itself would fail where
// some of its pages are registered and others are not.
void HotRows::copy_part(const HostRows& table, int64_t part, PinnedMemory& staging) const {
  if (row_bytes_ == 0) return;
  Device& device = *group_->device(part);
  auto* to = static_cast<char*>(const_cast<void*>(parts_.back()));
  const cpu::RowTable source{table.data, table.num_rows, table.row_bytes};
  const int64_t chunk = static_cast<int64_t>(staging.bytes()) / row_bytes_;
  std::vector<int64_t> rows;
  const int64_t all = rows_of(part, group_->size());
  for (int64_t first = 0; first < all; first += chunk) {
    rows.clear();
    for (int64_t i = first; i < std::min(all, first + chunk); ++i) {
      const int64_t shared = replicated_ + part + (i - replicated_) * group_->size();
      const int64_t place = i < replicated_ ? i : shared;
      rows.push_back(ids_.has_value() ? (*ids_)[static_cast<std::size_t>(place)] : place);
    }
    const auto count = static_cast<int64_t>(rows.size());
    cpu::gather_rows(source, rows.data(), count, cpu::RowTarget{staging.data(), count, nullptr},
                     kUploadThreads);
    const auto bytes = static_cast<std::size_t>(count * row_bytes_);
    device.upload_pinned(to, staging.data(), bytes);
    device.synchronize();  // before the staging memory is written again, and before peers read
    to += bytes;
  }
}

void HotRows::release() noexcept {
  if (own_ >= 0) return;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    Device& device = *group_->device(static_cast<int64_t>(part));
    void* const memory = const_cast<void*>(parts_[part]);
    if (group_->size() == 1) {
      device.release(memory);
    } else {
      device.release_for_peers(memory);
    }
  }
  parts_.clear();
}

std::vector<int32_t> HotRows::places() const {
  std::vector<int32_t> places(static_cast<std::size_t>(num_table_rows_), -1);
  if (!ids_.has_value()) {
    std::iota(places.begin(), places.end(), 0);
    return places;
  }
  for (std::size_t place = 0; place < ids_->size(); ++place) {
    places[static_cast<std::size_t>((*ids_)[place])] = static_cast<int32_t>(place);
  }
  return places;
}

DeviceTable::DeviceTable(std::shared_ptr<Device> device, const HostRows& table, TableMode mode,
                         std::shared_ptr<const HotRows> hot, int64_t sorts_from,
                         const std::optional<cpu::Codec>& codec)
    : device_(std::move(device)),
      num_rows_(table.num_rows),
      row_bytes_(table.row_bytes),
      out_bytes_(table.row_bytes),
      mode_(mode),
      parameters_there_(*device_),
      places_(*device_),
      parts_(*device_),
      counts_(*device_) {
  if (hot != nullptr && mode != TableMode::kDevice) {
    throw std::invalid_argument("hot rows are for tables in device memory");
  }
  if (codec.has_value()) take(*codec);
  if (mode == TableMode::kHost) {
    host_ = table;
    return;
  }
  if (mode == TableMode::kDevice) {
    if (hot == nullptr) {
      auto alone = std::make_shared<DeviceGroup>(std::vector<std::shared_ptr<Device>>{device_});
      hot = std::make_shared<HotRows>(std::move(alone), table, std::nullopt, 0);
    }
    split(std::move(hot));
  }
  split_.num_rows = num_rows_;
  split_.row_bytes = row_bytes_;
  split_.sorts_from = sorts_from;
  if (hot_ == nullptr || hot_->num_rows() < num_rows_) {
    // Rows are gathered in words that fit wherever they begin (with_widest_word), values whole.
    const auto width = static_cast<std::size_t>(std::max<int64_t>(split_.codec.stored_bytes, 1));
    cold_ = std::make_unique<HostMapping>(device_, table.data, table.bytes(), width, table.owner);
    split_.cold = cold_->on_device();
  }
}

void DeviceTable::take(const cpu::Codec& codec) {
  TableCodec& taken = split_.codec;
  taken.encoding = codec.encoding;
  taken.stored_bytes = stored_bytes(codec.encoding);
  const int64_t width = row_bytes_ / taken.stored_bytes;
  out_bytes_ = width * static_cast<int64_t>(sizeof(float));
  if (codec.encoding != Encoding::kInt8) return;
  parameters_.assign(codec.scale, codec.scale + width);
  parameters_.insert(parameters_.end(), codec.zero, codec.zero + width);
  if (mode_ == TableMode::kHost) {
    taken.scale = parameters_.data();
  } else {
    parameters_there_.reserve(2 * width);
    parameters_there_.upload(parameters_.data(), 2 * width);
    taken.scale = parameters_there_.data();
  }
  taken.zero = taken.scale + width;
}

// Memory of the host, and of peers, is given back at once, not in the order of the device's work.
DeviceTable::~DeviceTable() {
  if (is_read_) device_->wait_quietly();
}

void DeviceTable::split(std::shared_ptr<const HotRows> hot) {
  if (hot->num_table_rows() != num_rows_ || hot->row_bytes() != row_bytes_) {
    throw std::invalid_argument("the hot rows are those of another table: one of " +
                                std::to_string(hot->num_table_rows()) + " rows of " +
                                std::to_string(hot->row_bytes()) + " bytes");
  }
  split_.own_part = hot->part_of(*device_);
  if (split_.own_part < 0) {
    throw std::invalid_argument("device '" + device_->name() +
                                "' is not in the group that has the hot rows");
  }
  hot_ = std::move(hot);
  if (!hot_->is_whole()) {
    const std::vector<int32_t> places = hot_->places();
    places_.reserve(num_rows_);
    places_.upload(places.data(), num_rows_);
  }
  const auto num_parts = static_cast<int64_t>(hot_->parts().size());
  parts_.reserve(num_parts);
  parts_.upload(hot_->parts().data(), num_parts);
  device_->synchronize();
  split_.places = places_.data();
  split_.parts = parts_.data();
  split_.num_parts = num_parts;
  split_.replicated = hot_->replicated();
  for (const void* part : hot_->parts()) {
    split_.alignment |= reinterpret_cast<uintptr_t>(part) % kLineBytes;
  }
}

std::string DeviceTable::place() const {
  if (mode_ == TableMode::kHost) return "host";
  const std::string on_host = cold_ == nullptr ? "" : (cold_->is_copy() ? "pinned copy" : "mapped");
  if (hot_ == nullptr) return on_host;
  return on_host.empty() ? "device" : "device, " + on_host;
}

int64_t DeviceTable::gather(const void* rows, int row_width, bool rows_on_host, int64_t count,
                            void* out, int num_threads, bool waits) {
  if (count == 0) return -1;
  if (mode_ == TableMode::kHost) {
    return gather_on_host(rows, row_width, rows_on_host, count, out, num_threads);
  }
  if (waits) check_earlier();
  if (counts_.data() == nullptr) {
    DeviceArray<Device, SplitCounts> counts(*device_, 1);
    device_->fill(counts.data(), 0xFF, sizeof(SplitCounts));
    counts_ = std::move(counts);
  }
  is_read_ = true;  // also by a gather of which only a part is launched
  device_->split_gather(split_, rows, row_width, count, out, counts_.data());
  pending_ += count;
  return waits ? collect() : -1;
}

// Brings to the host what gathers have left on the device. Returns -1, or the first entry whose row
// does not exist.
int64_t DeviceTable::collect() {
  if (pending_ == 0) return -1;
  SplitCounts counts;
  device_->download(&counts, counts_.data(), sizeof(counts));
  is_read_ = false;
  device_->fill(counts_.data(), 0xFF, sizeof(counts));
  const int64_t asked = std::exchange(pending_, 0);
  if (counts.bad() >= 0) return counts.bad();
  if (row_bytes_ == 0) return -1;  // nothing was served
  served_.by_device += counts.num_hot();
  served_.by_peers += counts.num_of_peers();
  served_.by_host += asked - counts.num_hot();
  return -1;
}

// Of gathers that have not been waited for.
void DeviceTable::check_earlier() {
  const int64_t bad = collect();
  if (bad < 0) return;
  throw std::out_of_range("entry " + std::to_string(bad) +
                          " of rows that were gathered without waiting is outside a table of " +
                          std::to_string(num_rows_) + " rows");
}

DeviceTable::Served DeviceTable::served() {
  check_earlier();
  return served_;
}

void DeviceTable::reset_served() {
  served();  // throws what went wrong, if anything
  served_ = {0, 0, 0};
}

int64_t DeviceTable::gather_on_host(const void* rows, int row_width, bool rows_on_host,
                                    int64_t count, void* out, int num_threads) {
  if (!rows_on_host) {
    const auto bytes = static_cast<std::size_t>(count * row_width);
    PinnedMemory& here = staging(staged_rows_, bytes);
    device_->download(here.data(), rows, bytes);
    rows = here.data();
  }
  const auto bytes = static_cast<std::size_t>(count * out_bytes_);
  PinnedMemory& gathered = staging(staged_out_, bytes);
  const cpu::RowTable source{host_.data, num_rows_, row_bytes_};
  const cpu::RowTarget target{gathered.data(), count, nullptr};
  const cpu::Codec codec{split_.codec.encoding, split_.codec.scale, split_.codec.zero};
  const auto gather_by = [&](const auto* ids) {
    if (!widens()) return cpu::gather_rows(source, ids, count, target, num_threads);
    const cpu::RowDecoder& decoder = cpu::row_decoders().front();
    return cpu::decode_rows(decoder, source, ids, count, target, codec, num_threads);
  };
  const int64_t bad = row_width == 4 ? gather_by(static_cast<const int32_t*>(rows))
                                     : gather_by(static_cast<const int64_t*>(rows));
  if (bad >= 0 || row_bytes_ == 0) return bad;
  device_->upload_pinned(out, gathered.data(), bytes);
  device_->synchronize();  // before the staging memory is written again
  served_.by_host += count;
  return -1;
}

PinnedMemory& DeviceTable::staging(std::unique_ptr<PinnedMemory>& memory, std::size_t bytes) {
  if (memory == nullptr || memory->bytes() < bytes) {
    memory.reset();
    memory = std::make_unique<PinnedMemory>(device_, bytes + bytes / 4);
  }
  return *memory;
}

}  // namespace khop::device
