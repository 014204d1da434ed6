// Memory of a device that batches are written to, by one process and read by another.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <string_view>
#include <vector>

#include "khop/bindings/module.hpp"
#include "khop/bindings/py_device.hpp"
#include "khop/device/host_mapping.hpp"

namespace khop::bindings {
namespace {

using AnyView = nb::ndarray<nb::array_api>;

// 'float32' as DLPack has it.
nb::dlpack::dtype dtype_of(const std::string& name) {
  using nb::dlpack::dtype_code;
  if (name == "bool") return {static_cast<uint8_t>(dtype_code::Bool), 8, 1};
  const std::pair<std::string_view, dtype_code> kinds[] = {{"int", dtype_code::Int},
                                                           {"uint", dtype_code::UInt},
                                                           {"float", dtype_code::Float},
                                                           {"bfloat", dtype_code::Bfloat}};
  for (const auto& [kind, code] : kinds) {
    if (name.compare(0, kind.size(), kind) != 0) continue;
    const std::string digits = name.substr(kind.size());
    for (const int bits : {8, 16, 32, 64}) {
      if (digits == std::to_string(bits)) {
        return {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
      }
    }
  }
  throw nb::type_error(("no dtype '" + name + "' on devices").c_str());
}

// A range of bytes in a device's memory, however the process came by it.
class DeviceMemory {
 public:
  enum class Origin { kAllocated, kForPeers, kOpened, kHost };

  DeviceMemory(SharedDevice device, std::size_t bytes, Origin origin, void* data,
               nb::object owner = {})
      : device_(std::move(device)),
        bytes_(bytes),
        origin_(origin),
        data_(static_cast<char*>(data)),
        owner_(std::move(owner)) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  // An array of the host as the device reads it: in place, or a pinned copy.
  DeviceMemory(SharedDevice device, const InArray& array)
      : device_(std::move(device)), bytes_(array.nbytes()), origin_(Origin::kHost) {
    mapping_ = std::make_unique<device::HostMapping>(native(device_), array.data(), bytes_,
                                                     array.itemsize(), owner_of(array));
    data_ = static_cast<char*>(const_cast<void*>(mapping_->on_device()));
  }
  ~DeviceMemory() {
    device::Device& device = **device_;
    if (origin_ == Origin::kAllocated) {
      device.release(data_);
      return;
    }
    // All else is given back at once, not in the order of the device's work.
    device.wait_quietly();
    if (origin_ == Origin::kForPeers) device.release_for_peers(data_);
    if (origin_ == Origin::kOpened) device.close_handle(data_);
  }

  std::size_t nbytes() const { return bytes_; }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data_); }
  SharedDevice device() const { return device_; }

  nb::bytes handle() const {
    if (origin_ != Origin::kForPeers) {
      throw nb::value_error("only memory from allocate_shared has a handle for other processes");
    }
    const std::string handle = (*device_)->handle_of(data_);
    return nb::bytes(handle.data(), handle.size());
  }

  AnyView view(std::size_t offset, const std::vector<std::size_t>& shape, const std::string& dtype,
               nb::handle owner) const {
    const nb::dlpack::dtype type = dtype_of(dtype);
    std::size_t bytes = type.bits / 8;
    for (const std::size_t axis : shape) {
      if (axis != 0 && bytes > std::numeric_limits<std::size_t>::max() / axis) {
        throw nb::value_error("a view is larger than any memory");
      }
      bytes *= axis;
    }
    check_range(offset, bytes);
    const int kind = device_->is_cuda ? nb::device::cuda::value : nb::device::cpu::value;
    return AnyView(data_ + offset, shape.size(), shape.data(), owner, nullptr, type, kind,
                   device_->is_cuda ? device_->index : 0);
  }

  void upload(std::size_t offset, const InArray& array) const {
    check_range(offset, array.nbytes());
    const nb::gil_scoped_release release;
    (*device_)->upload(data_ + offset, array.data(), array.nbytes());
  }

  void download(std::size_t offset, const OutArray& out) const {
    check_range(offset, out.nbytes());
    const nb::gil_scoped_release release;
    (*device_)->download(out.data(), data_ + offset, out.nbytes());
  }

 private:
  void check_range(std::size_t offset, std::size_t bytes) const {
    if (offset <= bytes_ && bytes <= bytes_ - offset) return;
    throw nb::value_error((std::to_string(bytes) + " bytes from " + std::to_string(offset) +
                           " on lie outside a memory of " + std::to_string(bytes_))
                              .c_str());
  }

  SharedDevice device_;
  std::size_t bytes_;
  Origin origin_;
  char* data_ = nullptr;
  nb::object owner_;
  std::unique_ptr<device::HostMapping> mapping_;
};

std::unique_ptr<DeviceMemory> allocate(const SharedDevice& device, std::size_t bytes) {
  return std::make_unique<DeviceMemory>(device, bytes, DeviceMemory::Origin::kAllocated,
                                        (*device)->allocate(bytes));
}

std::unique_ptr<DeviceMemory> allocate_shared(const SharedDevice& device, std::size_t bytes) {
  return std::make_unique<DeviceMemory>(device, bytes, DeviceMemory::Origin::kForPeers,
                                        (*device)->allocate_for_peers(bytes));
}

std::unique_ptr<DeviceMemory> open(const SharedDevice& device, const nb::bytes& handle,
                                   std::size_t bytes) {
  const std::string name(handle.c_str(), handle.size());
  return std::make_unique<DeviceMemory>(device, bytes, DeviceMemory::Origin::kOpened,
                                        (*device)->open_handle(name));
}

std::unique_ptr<DeviceMemory> over(const SharedDevice& device, const OutArray& array) {
  if (device->is_cuda) {
    throw nb::value_error("arrays of the host are memory of emulated devices alone");
  }
  return std::make_unique<DeviceMemory>(device, array.nbytes(), DeviceMemory::Origin::kHost,
                                        array.data(), nb::cast(array));
}

std::unique_ptr<DeviceMemory> mapped(const SharedDevice& device, const InArray& array) {
  return std::make_unique<DeviceMemory>(device, array);
}

// Pages of the host that are locked for as long as it lives.
class LockedPages {
 public:
  LockedPages(SharedDevice device, const OutArray& array)
      : device_(std::move(device)),
        owner_(nb::cast(array)),
        memory_(array.data()),
        is_locked_((*device_)->lock_pages(memory_, array.nbytes())) {}
  LockedPages(const LockedPages&) = delete;
  LockedPages& operator=(const LockedPages&) = delete;
  ~LockedPages() {
    if (is_locked_) (*device_)->unlock_pages(memory_);
  }

  bool is_locked() const { return is_locked_; }

 private:
  SharedDevice device_;
  nb::object owner_;
  void* memory_;
  bool is_locked_;
};

}  // namespace

void bind_device_memory(nb::module_& m) {
  nb::class_<DeviceMemory>(m, "DeviceMemory", R"(Bytes in the memory of a device.

Copies happen on the device's stream, in the order of the calls.)")
      .def_static("allocate", &allocate, nb::arg("device"), nb::arg("nbytes"),
                  "Memory of this process.")
      .def_static("allocate_shared", &allocate_shared, nb::arg("device"), nb::arg("nbytes"),
                  "Memory that other processes open by its `handle`. GPUs only can share it.")
      .def_static("open", &open, nb::arg("device"), nb::arg("handle"), nb::arg("nbytes"),
                  R"(Opens what another process allocated, which must keep it meanwhile.

Raises:
    ValueError, RuntimeError: no such handle, or a CUDA call failed; names the call.)")
      .def_static("over", &over, nb::arg("device"), nb::arg("array").noconvert(),
                  "An array of the host as memory of an emulated device; keeps the array.")
      .def_static("mapped", &mapped, nb::arg("device"), nb::arg("array").noconvert(),
                  "An array of the host that the device reads in place, not to be written to; a "
                  "pinned copy where the driver does not allow that. Keeps the array.")
      .def_prop_ro("nbytes", &DeviceMemory::nbytes)
      .def_prop_ro("address", &DeviceMemory::address, "Where the device sees it.")
      .def_prop_ro("device", &DeviceMemory::device)
      .def_prop_ro("handle", &DeviceMemory::handle,
                   "Bytes by which another process opens the memory.")
      .def("view", &DeviceMemory::view, nb::arg("offset"), nb::arg("shape"), nb::arg("dtype"),
           nb::arg("owner"),
           R"(An array in the memory, with DLPack.

Args:
    offset: its first byte.
    shape: its axes.
    dtype: name of its dtype.
    owner: kept as long as anything looks into the array; must keep the memory.

Raises:
    ValueError: the array does not lie within the memory.)")
      .def("upload", &DeviceMemory::upload, nb::arg("offset"), nb::arg("array").noconvert(),
           "Copies an array of the host here, which may be changed afterwards.")
      .def("download", &DeviceMemory::download, nb::arg("offset"), nb::arg("out").noconvert(),
           "Copies to an array of the host; waits.");
  nb::class_<LockedPages>(m, "LockedPages", R"(Locks the pages of an array of the host.

Devices then copy to and from it without a detour. `is_locked` is False where the driver refuses.)")
      .def(nb::init<SharedDevice, const OutArray&>(), nb::arg("device"),
           nb::arg("array").noconvert())
      .def_prop_ro("is_locked", &LockedPages::is_locked);
}

}  // namespace khop::bindings
