#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "khop/bindings/device_arguments.hpp"
#include "khop/bindings/encoding.hpp"
#include "khop/bindings/module.hpp"
#include "khop/device/gather_table.hpp"

namespace khop::bindings {
namespace {

device::HostRows host_rows(const InArray& table) {
  if (table.ndim() < 1) throw nb::value_error("table needs a row axis");
  return {static_cast<const char*>(table.data()), length(table), row_bytes_of(table),
          owner_of(table)};
}

device::TableMode mode_of(const std::string& mode) {
  if (mode == "CUDA") return device::TableMode::kDevice;
  if (mode == "ZERO_COPY") return device::TableMode::kMapped;
  if (mode == "CPU") return device::TableMode::kHost;
  throw nb::value_error(("mode must be 'CPU', 'ZERO_COPY' or 'CUDA' (got '" + mode + "')").c_str());
}

void make_group(device::DeviceGroup* self, const std::vector<SharedDevice>& devices) {
  std::vector<std::shared_ptr<device::Device>> members;
  for (const SharedDevice& device : devices) members.push_back(native(device));
  new (self) device::DeviceGroup(std::move(members));
}

using Rows = std::optional<In<int64_t>>;

std::optional<std::vector<int64_t>> ids_of(const Rows& rows) {
  if (!rows.has_value()) return std::nullopt;
  return std::vector<int64_t>(rows->data(), rows->data() + rows->shape(0));
}

void make_hot_rows(device::HotRows* self, std::shared_ptr<device::DeviceGroup> group,
                   const InArray& table, const Rows& rows, int64_t replicated) {
  const device::HostRows source = host_rows(table);
  auto ids = ids_of(rows);
  const nb::gil_scoped_release release;
  new (self) device::HotRows(std::move(group), source, std::move(ids), replicated);
}

std::shared_ptr<device::HotRows> hot_rows_of_parts(const SharedDevice& device,
                                                   const nb::sequence& parts, int64_t own,
                                                   const InArray& table, const Rows& rows,
                                                   int64_t replicated) {
  std::vector<device::SeenMemory> seen;
  for (const nb::handle part : parts) {
    const auto address = nb::cast<uintptr_t>(part.attr("address"));
    seen.push_back(
        {reinterpret_cast<const void*>(address), nb::cast<std::size_t>(part.attr("nbytes"))});
  }
  return std::make_shared<device::HotRows>(native(device), std::move(seen), own, host_rows(table),
                                           ids_of(rows), replicated);
}

// Of rows that gathers widen; nothing without an encoding.
std::optional<cpu::Codec> codec_of_rows(const InArray& table,
                                        const std::optional<std::string>& encoding,
                                        const std::optional<In<float>>& scale,
                                        const std::optional<In<float>>& zero) {
  if (!encoding.has_value()) return std::nullopt;
  const int64_t bytes = row_bytes_of(table), stored = stored_bytes(encoding_of(*encoding));
  if (bytes % stored != 0) {
    throw nb::value_error(("rows of " + std::to_string(bytes) + " bytes are not values of " +
                           *encoding + ", which have " + std::to_string(stored))
                              .c_str());
  }
  return codec_of(*encoding, scale, zero, bytes / stored);
}

// A table, and the device whose arrays it reads and writes.
class PyDeviceTable {
 public:
  PyDeviceTable(SharedDevice device, const InArray& table, const std::string& mode,
                std::shared_ptr<device::HotRows> hot, int64_t sorts_from,
                const std::optional<std::string>& encoding, const std::optional<In<float>>& scale,
                const std::optional<In<float>>& zero)
      : device_(std::move(device)), mode_(mode_of(mode)) {
    if (sorts_from < 1) throw nb::value_error("sorts_from must be at least 1");
    const device::HostRows source = host_rows(table);
    const std::optional<cpu::Codec> codec = codec_of_rows(table, encoding, scale, zero);
    const nb::gil_scoped_release release;
    table_ = std::make_unique<device::DeviceTable>(native(device_), source, mode_, std::move(hot),
                                                   sorts_from, codec);
  }

  std::string place() const { return table_->place(); }

  std::pair<int64_t, int64_t> served() const {
    const nb::gil_scoped_release release;
    const device::DeviceTable::Served served = table_->served();
    return {served.by_device, served.by_host};
  }

  int64_t served_by_peers() const {
    const nb::gil_scoped_release release;
    return table_->served().by_peers;
  }

  void reset_served() const {
    const nb::gil_scoped_release release;
    table_->reset_served();
  }

  void gather(const AnyArray& rows, const AnyOut& out, int num_threads, bool waits) const {
    const bool rows_on_host =
        mode_ == device::TableMode::kHost && rows.device_type() == nb::device::cpu::value;
    if (!rows_on_host) device_->check_place(rows, "rows");
    device_->check_place(out, "out");
    if (out.ndim() < 1 || rows.ndim() != 1) {
      throw nb::value_error("out needs a row axis, rows exactly one axis");
    }
    if (row_bytes_of(out) != table_->out_bytes() || rows.shape(0) != out.shape(0)) {
      throw nb::value_error(("out must have a row of " + std::to_string(table_->out_bytes()) +
                             " bytes for each of " + std::to_string(rows.shape(0)) + " rows (got " +
                             std::to_string(out.shape(0)) + " of " +
                             std::to_string(row_bytes_of(out)) + " bytes)")
                                .c_str());
    }
    const int row_width =
        visit_ints(rows, "rows", [](auto* data) { return static_cast<int>(sizeof(*data)); });
    run(rows.data(), row_width, rows_on_host, entries_of(rows), out.data(), num_threads, waits);
  }

  void gather_at(uintptr_t rows, int row_width, int64_t count, uintptr_t out, int num_threads,
                 bool waits) const {
    if ((row_width != 4 && row_width != 8) || count < 0) {
      throw nb::value_error(("row_width must be 4 or 8 and count not negative (got " +
                             std::to_string(row_width) + " and " + std::to_string(count) + ")")
                                .c_str());
    }
    run(reinterpret_cast<const void*>(rows), row_width, false, count, reinterpret_cast<void*>(out),
        num_threads, waits);
  }

 private:
  void run(const void* rows, int row_width, bool rows_on_host, int64_t count, void* out,
           int num_threads, bool waits) const {
    if (table_->widens() && reinterpret_cast<uintptr_t>(out) % sizeof(float) != 0) {
      throw nb::value_error("out must begin at a multiple of 4 bytes: it is float32");
    }
    int64_t bad;
    {
      const ReleaseGilToWait release(waits || mode_ == device::TableMode::kHost);
      bad = table_->gather(rows, row_width, rows_on_host, count, out, num_threads, waits);
    }
    if (bad >= 0) refuse(bad, rows, row_width, rows_on_host);
  }

  [[noreturn]] void refuse(int64_t entry, const void* rows, int row_width,
                           bool rows_on_host) const {
    int64_t row;
    if (!rows_on_host) {
      row = read_int(*device_, rows, row_width, entry);
    } else if (row_width == 4) {
      row = static_cast<const int32_t*>(rows)[entry];
    } else {
      row = static_cast<const int64_t*>(rows)[entry];
    }
    throw nb::index_error(("row " + std::to_string(row) + " (entry " + std::to_string(entry) +
                           " of rows) is outside a table of " + std::to_string(table_->num_rows()) +
                           " rows")
                              .c_str());
  }

  SharedDevice device_;
  device::TableMode mode_;
  std::unique_ptr<device::DeviceTable> table_;
};

}  // namespace

void bind_device_gather(nb::module_& m) {
  nb::class_<device::DeviceGroup>(m, "DeviceGroup", "Devices that read each other's memory.")
      .def("__init__", &make_group, nb::arg("devices"),
           R"(Opens the memory of each device to all others.

Raises:
    RuntimeError: there is no path between two of them; names both.)")
      .def("__len__", [](const device::DeviceGroup& self) { return self.size(); });

  nb::class_<device::HotRows>(m, "HotRows",
                              R"(Rows of a table in the memory of a group's devices.

Row p of them lies on device p % n, so each device has its share of the hottest. The tables of all
devices of the group may use it.)")
      .def("__init__", &make_hot_rows, nb::arg("group"), nb::arg("table"),
           nb::arg("rows").noconvert().none() = nb::none(), nb::arg("replicated") = 0,
           R"(Copies rows to the devices.

Args:
    group: the devices.
    table: [num_rows, ...] of the host; not needed any more afterwards.
    rows: [n] int64, which rows, hottest first; None: all.
    replicated: how many of the first ones lie on each device. Of the others each lies on one.

Raises:
    ValueError: a row does not exist or stands twice, or `replicated` is out of range.)")
      .def_static("of_parts", &hot_rows_of_parts, nb::arg("device"), nb::arg("parts"),
                  nb::arg("own"), nb::arg("table"), nb::arg("rows").noconvert().none() = nb::none(),
                  nb::arg("replicated") = 0, nb::keep_alive<0, 2>(),
                  R"(Rows that lie in the memory of several processes, which have filled it.

Args:
    device: the device of this process.
    parts: a `DeviceMemory` of each process, its own or opened. Kept.
    own: which of them is the device's.
    table, rows, replicated: as for the constructor.

Raises:
    ValueError: as for the constructor, or a part is too small.)")
      .def_prop_ro("num_rows", &device::HotRows::num_rows,
                   "Rows in device memory, of all devices.");

  nb::class_<PyDeviceTable>(m, "DeviceTable", "A table of the host whose rows a device gathers.")
      .def(nb::init<SharedDevice, const InArray&, const std::string&,
                    std::shared_ptr<device::HotRows>, int64_t, const std::optional<std::string>&,
                    const std::optional<In<float>>&, const std::optional<In<float>>&>(),
           nb::arg("device"), nb::arg("table"), nb::arg("mode") = "CUDA",
           nb::arg("hot").none() = nb::none(), nb::arg("sorts_from") = device::kSortsFrom,
           nb::arg("encoding") = nb::none(), nb::arg("scale").noconvert().none() = nb::none(),
           nb::arg("zero").noconvert().none() = nb::none(),
           R"(Makes the rows of an array, also a mapped file, readable by a device.

Args:
    device: who gathers.
    table: [num_rows, ...]; kept alive where it is read in place, and must not change.
    mode: 'CUDA' (in device memory), 'ZERO_COPY' (read in place on the host) or 'CPU' (gathered by
        the CPU, then copied).
    hot: with 'CUDA', the rows that are in device memory, the others are read in place; None: all.
    sorts_from: gathers of so many rows, where rows are read in place on the host, read them in the
        order of the table: neighbours share the translation of their pages. The result is the
        same. Takes a few launches and 32 bytes of device memory a row, 32 MiB at most a device.
    encoding: 'bfloat16', 'float16', 'float8_e4m3fn' or 'int8': gathers widen rows to float32, to
        the bits of `decode`. None: rows are delivered as they are stored.
    scale, zero: [values of a row] float32 of int8, see `decode`.

Raises:
    ValueError: an unknown mode or encoding, hot rows of another table or of a group without the
        device, scales of another length, or `sorts_from` below 1.
    RuntimeError: a CUDA call failed; names the call.)")
      .def_prop_ro(
          "place", &PyDeviceTable::place,
          R"(Where rows lie: 'device', 'mapped' (host memory read in place), 'pinned copy' (of host
memory that the driver would not register), 'device, mapped', 'device, pinned copy' or 'host'.)")
      .def_prop_ro("served", &PyDeviceTable::served,
                   "Rows that came from the memory of devices, and from the host's. Waits.")
      .def_prop_ro("served_by_peers", &PyDeviceTable::served_by_peers,
                   "Rows of those from devices that came from other devices. Waits.")
      .def("reset_served", &PyDeviceTable::reset_served)
      .def("gather", &PyDeviceTable::gather, nb::arg("rows"), nb::arg("out").noconvert(),
           nb::arg("num_threads") = 1, nb::arg("wait") = true,
           R"(out[i] = table[rows[i]], on the device.

Only the bytes of a row count, with an encoding those of float32. In mode 'CPU' `rows` may also be a NumPy array, and up to
`num_threads` threads gather. With `wait` false, which is for rows that are known to exist, nothing
is waited for, but in mode 'CPU'; a row that does not exist is then an error of `served` or of the
next gather that waits.

Raises:
    IndexError: a row does not exist; names the first. What `out` holds is then undefined.
    ValueError: arrays of another device, or rows of another width.
    RuntimeError: a CUDA call failed; names the call.)")
      .def("gather_at", &PyDeviceTable::gather_at, nb::arg("rows"), nb::arg("row_width"),
           nb::arg("count"), nb::arg("out"), nb::arg("num_threads") = 1, nb::arg("wait") = true,
           R"(As `gather`, of addresses in the device's memory, which nobody can check.

To import an array by DLPack takes longer than to ask for a gather.

Args:
    rows: of `count` integers.
    row_width: bytes of each, 4 or 8.
    count: how many.
    out: of `count` rows of the table's width.
    num_threads, wait: as for `gather`.

Raises:
    IndexError: a row does not exist; names the first.
    ValueError: another width, or a negative count.
    RuntimeError: a CUDA call failed; names the call.)");
}

}  // namespace khop::bindings
