// Hotness on a device; errors have the CPU's texts.
#include "khop/bindings/checks.hpp"
#include "khop/bindings/device_graph.hpp"
#include "khop/core/sizes.hpp"

namespace khop::bindings {
namespace {

// A copy of an array of the host.
class OnDevice {
 public:
  OnDevice(device::Device& device, const double* values, int64_t count)
      : device_(device),
        bytes_(bytes_of(count, sizeof(double))),
        memory_(static_cast<double*>(device.allocate(bytes_))) {
    device_.upload(memory_, values, bytes_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { device_.release(memory_); }

  double* data() const { return memory_; }
  void download(double* to) const { device_.download(to, memory_, bytes_); }

 private:
  device::Device& device_;
  std::size_t bytes_;
  double* memory_;
};

void accumulate_hotness(const PyDevice& self, const DeviceGraph& graph, const In<double>& frontier,
                        int64_t fanout, bool replace, const Out<double>& log_missed,
                        int64_t edges_at_a_time) {
  if (graph.device()->name() != self->name()) {
    throw nb::value_error("the graph belongs to another device");
  }
  const device::GraphArrays& arrays = graph.arrays();
  const auto num_nodes = static_cast<int64_t>(log_missed.shape(0));
  check_length(static_cast<int64_t>(frontier.shape(0)), arrays.num_rows, "frontier");
  if (edges_at_a_time < 1) throw nb::value_error("edges_at_a_time must be at least 1");
  device::DeviceError error;
  {
    nb::gil_scoped_release release;
    const OnDevice from(*self, frontier.data(), arrays.num_rows);
    const OnDevice sums(*self, log_missed.data(), num_nodes);
    error = self->accumulate_hotness(arrays, {from.data(), fanout, replace, edges_at_a_time},
                                     sums.data(), num_nodes);
    if (error.code == device::DeviceError::kNone) sums.download(log_missed.data());
  }
  if (error.code == device::DeviceError::kCorruptRow)
    throw std::runtime_error("row pointers are corrupt");
  if (error.code == device::DeviceError::kNoSuchNeighbor) {
    throw std::out_of_range("a neighbour's id is not below the number of nodes");
  }
}

}  // namespace

void bind_device_hotness(nb::class_<PyDevice>& device) {
  device.def("accumulate_hotness", &accumulate_hotness, nb::arg("graph"),
             nb::arg("frontier").noconvert(), nb::arg("fanout"), nb::arg("replace"),
             nb::arg("log_missed").noconvert(), nb::arg("edges_at_a_time") = int64_t{1} << 24,
             R"(As `_native.accumulate_hotness`, over a DeviceGraph: the same bits.

Arrays are the host's. Each node's terms are added in the order of their rows, by one thread. Takes
32 bytes for each of `edges_at_a_time`, and 16 for each node. Waits.

Raises:
    IndexError, RuntimeError: the graph has neighbours that are no nodes, or corrupt row pointers;
        nothing is added.)");
}

}  // namespace khop::bindings
