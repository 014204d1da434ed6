#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "../device/table.hpp"
#include "device.hpp"
#include "graph.hpp"

namespace khop::bindings {
namespace {

HostRows host_rows(const InArray& table) {
  if (table.ndim() < 1) throw nb::value_error("table needs a row axis");
  return {static_cast<const char*>(table.data()), length(table), row_bytes_of(table), keep(table)};
}

TableMode mode_of(const std::string& mode) {
  if (mode == "CUDA") return TableMode::kDevice;
  if (mode == "ZERO_COPY") return TableMode::kMapped;
  if (mode == "CPU") return TableMode::kHost;
  throw nb::value_error(("mode must be 'CPU', 'ZERO_COPY' or 'CUDA' (got '" + mode + "')").c_str());
}

void make_group(DeviceGroup* self, const std::vector<SharedDevice>& devices) {
  std::vector<std::shared_ptr<Device>> members;
  for (const SharedDevice& device : devices) members.push_back(native(device));
  new (self) DeviceGroup(std::move(members));
}

void make_hot_rows(HotRows* self, std::shared_ptr<DeviceGroup> group, const InArray& table,
                   const std::optional<In<int64_t>>& rows) {
  const HostRows source = host_rows(table);
  std::optional<std::vector<int64_t>> ids;
  if (rows.has_value()) ids.emplace(rows->data(), rows->data() + rows->shape(0));
  const nb::gil_scoped_release release;
  new (self) HotRows(std::move(group), source, std::move(ids));
}

// A table, and the device whose arrays it reads and writes.
class PyTable {
 public:
  PyTable(SharedDevice device, const InArray& table, const std::string& mode,
          std::shared_ptr<HotRows> hot)
      : device_(std::move(device)), mode_(mode_of(mode)) {
    const HostRows source = host_rows(table);
    const nb::gil_scoped_release release;
    table_ = std::make_unique<DeviceTable>(native(device_), source, mode_, std::move(hot));
  }

  DeviceTable& table() const { return *table_; }

  void gather(const AnyArray& rows, const AnyOut& out, int num_threads, bool waits) const {
    const bool rows_on_host =
        mode_ == TableMode::kHost && rows.device_type() == nb::device::cpu::value;
    if (!rows_on_host) device_->check_place(rows, "rows");
    device_->check_place(out, "out");
    if (out.ndim() < 1 || rows.ndim() != 1) {
      throw nb::value_error("out needs a row axis, rows exactly one axis");
    }
    if (row_bytes_of(out) != table_->row_bytes() || rows.shape(0) != out.shape(0)) {
      throw nb::value_error(("out must have a row of " + std::to_string(table_->row_bytes()) +
                             " bytes for each of " + std::to_string(rows.shape(0)) + " rows (got " +
                             std::to_string(out.shape(0)) + " of " +
                             std::to_string(row_bytes_of(out)) + " bytes)")
                                .c_str());
    }
    visit_ints(rows, "rows", [&](auto* data) {
      const auto count = static_cast<int64_t>(rows.shape(0));
      int64_t bad;
      {
        const nb::gil_scoped_release release;
        bad = table_->gather(data, sizeof(*data), rows_on_host, count, out.data(), num_threads,
                             waits);
      }
      if (bad >= 0) refuse(bad, data, rows_on_host);
      return 0;
    });
  }

 private:
  template <class Index>
  [[noreturn]] void refuse(int64_t entry, const Index* rows, bool rows_on_host) const {
    Index row;
    if (rows_on_host) {
      row = rows[entry];
    } else {
      (*device_)->download(&row, rows + entry, sizeof(row));
    }
    throw nb::index_error(("row " + std::to_string(row) + " (entry " + std::to_string(entry) +
                           " of rows) is outside a table of " + std::to_string(table_->num_rows()) +
                           " rows")
                              .c_str());
  }

  SharedDevice device_;
  TableMode mode_;
  std::unique_ptr<DeviceTable> table_;
};

}  // namespace

void bind_device_table(nb::module_& m) {
  nb::class_<DeviceGroup>(m, "DeviceGroup", "Devices that read each other's memory.")
      .def("__init__", &make_group, nb::arg("devices"),
           R"(Opens the memory of each device to all others.

Raises:
    RuntimeError: there is no path between two of them; names both.)")
      .def("__len__", [](const DeviceGroup& self) { return self.size(); });

  nb::class_<HotRows>(m, "HotRows",
                      R"(Rows of a table in the memory of a group's devices.

Row p of them lies on device p % n, so each device has its share of the hottest. The tables of all
devices of the group may use it.)")
      .def("__init__", &make_hot_rows, nb::arg("group"), nb::arg("table"),
           nb::arg("rows").noconvert().none() = nb::none(),
           R"(Copies rows to the devices.

Args:
    group: the devices.
    table: [num_rows, ...] of the host; not needed any more afterwards.
    rows: [n] int64, which rows, hottest first; None: all.

Raises:
    ValueError: a row does not exist or stands twice.)")
      .def_prop_ro("num_rows", &HotRows::num_rows, "Rows in device memory, of all devices.");

  nb::class_<PyTable>(m, "DeviceTable", "A table of the host whose rows a device gathers.")
      .def(nb::init<SharedDevice, const InArray&, const std::string&, std::shared_ptr<HotRows>>(),
           nb::arg("device"), nb::arg("table"), nb::arg("mode") = "CUDA",
           nb::arg("hot").none() = nb::none(),
           R"(Makes the rows of an array, also a mapped file, readable by a device.

Args:
    device: who gathers.
    table: [num_rows, ...]; kept alive where it is read in place, and must not change.
    mode: 'CUDA' (in device memory), 'ZERO_COPY' (read in place on the host) or 'CPU' (gathered by
        the CPU, then copied).
    hot: with 'CUDA', the rows that are in device memory, the others are read in place; None: all.

Raises:
    ValueError: an unknown mode, or hot rows of another table or of a group without the device.
    RuntimeError: a CUDA call failed; names the call.)")
      .def_prop_ro(
          "place", [](const PyTable& self) { return self.table().place(); },
          R"(Where rows lie: 'device', 'mapped' (host memory read in place), 'pinned copy' (of host
memory that the driver would not register), 'device, mapped', 'device, pinned copy' or 'host'.)")
      .def_prop_ro(
          "served",
          [](const PyTable& self) {
            const DeviceTable::Served served = self.table().served();
            return std::make_pair(served.by_device, served.by_host);
          },
          "Rows that came from the memory of devices, and from the host's. Waits.")
      .def("reset_served", [](const PyTable& self) { self.table().reset_served(); })
      .def("gather", &PyTable::gather, nb::arg("rows"), nb::arg("out").noconvert(),
           nb::arg("num_threads") = 1, nb::arg("wait") = true,
           R"(out[i] = table[rows[i]], on the device, in one launch.

Only the bytes of a row count. In mode 'CPU' `rows` may also be a NumPy array, and up to
`num_threads` threads gather. With `wait` false, which is for rows that are known to exist, nothing
is waited for, but in mode 'CPU'; a row that does not exist is an error of the next question.

Raises:
    IndexError: a row does not exist; names the first. What `out` holds is then undefined.
    ValueError: arrays of another device, or rows of another width.
    RuntimeError: a CUDA call failed; names the call.)");
}

}  // namespace khop::bindings
