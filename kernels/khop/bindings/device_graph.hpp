// A Csr whose arrays a device reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "khop/bindings/csr.hpp"
#include "khop/bindings/py_device.hpp"
#include "khop/device/graph.hpp"
#include "khop/device/host_mapping.hpp"

namespace khop::bindings {

class DeviceGraph {
 public:
  // mode: 'CUDA' (copied to the device) or 'ZERO_COPY' (host memory, read in place).
  DeviceGraph(std::shared_ptr<PyDevice> device, nb::object csr, const std::string& mode);
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  ~DeviceGraph();

  // For a device that is about to read it: the graph's own, or another stream of the same GPU.
  const device::GraphArrays& arrays_for(const SharedDevice& reader) const;
  // For the graph's own device.
  const device::GraphArrays& arrays() const { return arrays_; }
  const PyDevice& device() const { return *device_; }
  const std::string& mode() const { return mode_; }
  bool has_times() const { return arrays_.times != nullptr; }
  bool has_weights() const { return arrays_.weight_sums != nullptr; }

 private:
  template <class T>
  void place(const Csr& csr, const T*& array, int64_t count, std::size_t width);
  void release() noexcept;

  std::shared_ptr<PyDevice> device_;
  std::string mode_;
  device::GraphArrays arrays_;
  mutable std::vector<SharedDevice> readers_;
  std::vector<void*> owned_;
  std::vector<std::unique_ptr<device::HostMapping>> mapped_;
};

}  // namespace khop::bindings
