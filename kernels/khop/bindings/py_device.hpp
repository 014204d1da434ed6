// Devices in Python, and arrays that they may read or write.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "khop/bindings/arrays.hpp"
#include "khop/device/device.hpp"

namespace khop::bindings {

// Arrays on any device; `check_place` says whether a device can use one.
using AnyArray = nb::ndarray<nb::ro, nb::c_contig>;
using AnyOut = nb::ndarray<nb::c_contig>;

// A device, and whether its memory is that of CUDA arrays or of NumPy's.
struct PyDevice {
  std::unique_ptr<device::Device> device;
  bool is_cuda;
  int index;

  device::Device& operator*() const { return *device; }
  device::Device* operator->() const { return device.get(); }

  template <class Array>
  void check_place(const Array& array, const char* name) const {
    const bool fits =
        is_cuda ? array.device_type() == nb::device::cuda::value && array.device_id() == index
                : array.device_type() == nb::device::cpu::value;
    if (fits) return;
    throw nb::value_error(
        (std::string(name) + " is not in the memory of device '" + device->name() + "'").c_str());
  }
};

using SharedDevice = std::shared_ptr<PyDevice>;

inline std::shared_ptr<device::Device> native(const SharedDevice& device) {
  return {device, device->device.get()};
}

// A reference to what Python holds, an array or an object, which any thread may give back.
template <class T>
std::shared_ptr<const void> keep(T held) {
  return {new T(std::move(held)), [](const void* p) {
            const nb::gil_scoped_acquire lock;
            delete static_cast<const T*>(p);
          }};
}

// The owner of an array of the host: the object that the array is a view of, and all memory that
// this one has. Other objects than arrays and buffers have what the array shows.
device::HostOwner owner_of(const InArray& array);

// Lets other Python threads run during a call that waits for a device. One that only asks for
// something is over sooner than the interpreter lock would be handed over and back.
class ReleaseGilToWait {
 public:
  explicit ReleaseGilToWait(bool waits) {
    if (waits) release_.emplace();
  }

 private:
  std::optional<nb::gil_scoped_release> release_;
};

void bind_device_convert(nb::class_<PyDevice>& device);
void bind_device_hotness(nb::class_<PyDevice>& device);
void bind_device_walk(nb::class_<PyDevice>& device);

}  // namespace khop::bindings
