// Tables whose rows a device gathers: from its memory, from that of its peers, from the host's, or
// from both with the hottest rows on the devices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "khop/cpu/decode.hpp"
#include "khop/device/device.hpp"
#include "khop/device/host_mapping.hpp"
#include "khop/device/steps/gather_split.hpp"
#include "khop/device/steps/memory.hpp"

namespace khop::device {

// An array of the host: [num_rows, row_bytes].
struct HostRows {
  const char* data;
  int64_t num_rows;
  int64_t row_bytes;
  HostOwner owner;

  std::size_t bytes() const { return static_cast<std::size_t>(num_rows * row_bytes); }
};

// Devices that read each other's memory (NVLink, or PCIe where it allows that).
class DeviceGroup {
 public:
  // Throws std::runtime_error that names the two devices between which there is no path.
  explicit DeviceGroup(std::vector<std::shared_ptr<Device>> devices);

  int64_t size() const { return static_cast<int64_t>(devices_.size()); }
  const std::shared_ptr<Device>& device(int64_t i) const {
    return devices_[static_cast<std::size_t>(i)];
  }
  int64_t position_of(const Device& device) const;  // -1: it is not in the group

 private:
  std::vector<std::shared_ptr<Device>> devices_;
};

// Memory of a device, as another one sees it that reads it.
struct SeenMemory {
  const void* data;
  std::size_t bytes;
};

// Rows of a table in the memory of a group's devices; how they are divided is said in
// device/steps/gather_split.hpp. The devices' tables share it.
class HotRows {
 public:
  // `ids`: which rows, hottest first; nothing: all, row r at place r. The first `replicated` lie on
  // each device. Throws std::invalid_argument for a row that does not exist or stands twice.
  HotRows(std::shared_ptr<const DeviceGroup> group, const HostRows& table,
          std::optional<std::vector<int64_t>> ids, int64_t replicated);
  // Rows in memory of several processes, each with one device and its part. The parts, which hold
  // their rows already, must live longer. `device` has part number `own`. Throws as the other, and
  // for a part that is too small.
  HotRows(std::shared_ptr<Device> device, std::vector<SeenMemory> parts, int64_t own,
          const HostRows& table, std::optional<std::vector<int64_t>> ids, int64_t replicated);
  HotRows(const HotRows&) = delete;
  HotRows& operator=(const HotRows&) = delete;
  ~HotRows();

  int64_t num_rows() const { return count_; }
  int64_t num_table_rows() const { return num_table_rows_; }
  int64_t row_bytes() const { return row_bytes_; }
  bool is_whole() const { return !ids_.has_value(); }
  int64_t replicated() const { return replicated_; }
  // Which part a device has; -1: none.
  int64_t part_of(const Device& device) const;
  const std::vector<const void*>& parts() const { return parts_; }
  // [num_table_rows] place of each row, -1: none.
  std::vector<int32_t> places() const;

 private:
  HotRows(std::shared_ptr<const DeviceGroup> group, const HostRows& table,
          std::optional<std::vector<int64_t>> ids, int64_t replicated, int64_t own);
  int64_t rows_of(int64_t part, int64_t num_parts) const;
  void* allocate(Device& device, std::size_t bytes) const;
  void copy_part(const HostRows& table, int64_t part, PinnedMemory& staging) const;
  void release() noexcept;

  std::shared_ptr<const DeviceGroup> group_;
  int64_t num_table_rows_;
  int64_t row_bytes_;
  std::optional<std::vector<int64_t>> ids_;
  int64_t count_;
  int64_t replicated_;
  int64_t own_;  // -1: the parts are this object's, one for each device of the group
  std::vector<const void*> parts_;
};

enum class TableMode {
  kDevice,  // in the memory of devices; rows that are not hot are read in place on the host
  kMapped,  // read in place on the host
  kHost,    // gathered by the CPU, then copied
};

class DeviceTable {
 public:
  // `hot` with kDevice alone; nothing: all rows, on this device. From `sorts_from` rows on, a
  // gather that reads the host's memory does so in the order of rows. With `codec` gathers widen
  // the values of rows to float32. Throws std::invalid_argument if `hot` is of another table or
  // group.
  DeviceTable(std::shared_ptr<Device> device, const HostRows& table, TableMode mode,
              std::shared_ptr<const HotRows> hot, int64_t sorts_from = kSortsFrom,
              const std::optional<cpu::Codec>& codec = std::nullopt);
  DeviceTable(const DeviceTable&) = delete;
  DeviceTable& operator=(const DeviceTable&) = delete;
  ~DeviceTable();  // waits for gathers in flight

  int64_t num_rows() const { return num_rows_; }
  int64_t out_bytes() const { return out_bytes_; }  // of a gathered row
  bool widens() const { return split_.codec.stored_bytes != 0; }
  // Where rows lie: 'device', 'mapped', 'pinned copy', 'host', or two of these.
  std::string place() const;
  // How many rows came from the memory of devices and of the host, and how many of the former from
  // that of peers.
  struct Served {
    int64_t by_device;
    int64_t by_host;
    int64_t by_peers;
  };
  // Waits for gathers in flight. Throws std::out_of_range if one of them asked for
  // a row that does not exist.
  Served served();
  void reset_served();

  // out[i] = table[rows[i]], with `rows` of `row_width` bytes each and `out` on the device; `rows`
  // too, but for those of a host's table, which always waits. Returns -1, or, if it waits, the
  // first i whose row does not exist; what `out` holds is then undefined. `num_threads` gather for
  // a host's table. If it waits, throws as `served` does.
  int64_t gather(const void* rows, int row_width, bool rows_on_host, int64_t count, void* out,
                 int num_threads, bool waits);

 private:
  void take(const cpu::Codec& codec);
  void split(std::shared_ptr<const HotRows> hot);
  int64_t gather_on_host(const void* rows, int row_width, bool rows_on_host, int64_t count,
                         void* out, int num_threads);
  int64_t collect();
  void check_earlier();
  PinnedMemory& staging(std::unique_ptr<PinnedMemory>& memory, std::size_t bytes);

  std::shared_ptr<Device> device_;
  int64_t num_rows_;
  int64_t row_bytes_;
  int64_t out_bytes_;
  TableMode mode_;
  HostRows host_{};                // of kHost
  std::vector<float> parameters_;  // of int8: scale and zero of each value of a row
  DeviceArray<Device, float> parameters_there_;
  std::unique_ptr<HostMapping> cold_;
  std::shared_ptr<const HotRows> hot_;
  DeviceArray<Device, int32_t> places_;
  DeviceArray<Device, const void*> parts_;
  SplitTable split_{};
  std::unique_ptr<PinnedMemory> staged_rows_;  // of kHost
  std::unique_ptr<PinnedMemory> staged_out_;
  DeviceArray<Device, SplitCounts> counts_;
  int64_t pending_ = 0;   // rows asked for since the counts were collected
  bool is_read_ = false;  // by gathers that nobody has waited for
  Served served_{0, 0, 0};
};

}  // namespace khop::device
