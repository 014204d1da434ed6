#include "khop/bindings/device_graph.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

#include "khop/bindings/module.hpp"

namespace khop::bindings {

DeviceGraph::DeviceGraph(std::shared_ptr<PyDevice> device, nb::object csr, const std::string& mode)
    : device_(std::move(device)), mode_(mode) {
  if (mode != "CUDA" && mode != "ZERO_COPY") {
    throw nb::value_error(("mode must be 'CUDA' or 'ZERO_COPY' (got '" + mode + "')").c_str());
  }
  const Csr& host = nb::cast<const Csr&>(csr);
  nb::gil_scoped_release unlocked;
  arrays_ = host.visit([](const auto& view) { return device::arrays_of(view); });
  try {
    place(host, arrays_.indptr, arrays_.num_rows + 1, arrays_.indptr_width);
    place(host, arrays_.indices, arrays_.num_edges, arrays_.indices_width);
    place(host, arrays_.row_ids, arrays_.num_rows, arrays_.row_id_width);
    place(host, arrays_.neighbor_ids, arrays_.num_edges, arrays_.neighbor_id_width);
    place(host, arrays_.times, arrays_.num_edges, sizeof(int64_t));
    place(host, arrays_.weight_sums, arrays_.num_edges, sizeof(uint64_t));
    place(host, arrays_.weight_guide, arrays_.num_edges, sizeof(uint32_t));
  } catch (...) {
    release();
    throw;
  }
}

DeviceGraph::~DeviceGraph() { release(); }

template <class T>
void DeviceGraph::place(const Csr& csr, const T*& array, int64_t count, std::size_t width) {
  const std::size_t size = static_cast<std::size_t>(count) * width;
  if (array == nullptr) return;
  device::Device& device = **device_;
  if (mode_ == "CUDA" || size == 0) {  // without entries, too, it is there: has_times
    void* const memory = device.allocate(size);
    owned_.push_back(memory);
    device.upload(memory, array, size);
    array = static_cast<const T*>(memory);
  } else {
    device::HostOwner owner = [&] {
      const nb::gil_scoped_acquire locked;
      return owner_of(csr.array_at(array));
    }();
    mapped_.push_back(std::make_unique<device::HostMapping>(native(device_), array, size, width,
                                                            std::move(owner)));
    array = static_cast<const T*>(mapped_.back()->on_device());
  }
}

const device::GraphArrays& DeviceGraph::arrays_for(const SharedDevice& reader) const {
  if (std::find(readers_.begin(), readers_.end(), reader) == readers_.end()) {
    readers_.push_back(reader);
  }
  return arrays_;
}

// Memory is given back at once, or in the order of the graph's own stream: batches that others
// have been asked for may still be drawn from it.
void DeviceGraph::release() noexcept {
  for (const SharedDevice& reader : readers_) (*reader)->wait_quietly();
  device::Device& device = **device_;
  for (void* memory : owned_) device.release(memory);
}

void bind_device_graph(nb::module_& m) {
  nb::class_<DeviceGraph>(m, "DeviceGraph", R"(A graph that a device samples from.

Args:
    device: the device.
    csr: the graph; its arrays are kept only if they are read in place.
    mode: 'CUDA', in the device's memory, or 'ZERO_COPY', in the host's, read in place.

Raises:
    ValueError: another mode.
    RuntimeError: a CUDA call failed, for want of memory perhaps; names the call.)")
      .def(nb::init<std::shared_ptr<PyDevice>, nb::object, const std::string&>(), nb::arg("device"),
           nb::arg("csr"), nb::arg("mode") = "CUDA")
      .def_prop_ro("mode", &DeviceGraph::mode)
      .def_prop_ro("has_times", &DeviceGraph::has_times)
      .def_prop_ro("has_weights", &DeviceGraph::has_weights);
}

}  // namespace khop::bindings
