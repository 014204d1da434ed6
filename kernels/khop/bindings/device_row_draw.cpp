#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/device_plan.hpp"
#include "khop/bindings/module.hpp"
#include "khop/core/node_table.hpp"

namespace khop::bindings {
namespace {

// Edge type, options, address of keys, address of times, rows.
using Asked = std::tuple<int64_t, HopOptions, uintptr_t, uintptr_t, int64_t>;

// Python's DeviceRowDraw: checks arguments; the rest is the interface's.
class PyDeviceRowDraw {
 public:
  PyDeviceRowDraw(SharedDevice device, nb::list graphs, const std::vector<int64_t>& num_nodes,
                  bool disjoint)
      : device_(std::move(device)),
        graphs_(std::move(graphs)),
        disjoint_(disjoint),
        arrays_(arrays_of(graphs_, device_, num_nodes.size())),
        draw_((*device_)->make_row_draw()) {
    for (const int64_t count : num_nodes) id_bits_.push_back(id_bits_for(count));
  }

  std::vector<int64_t> draw(const std::vector<Asked>& asked, uintptr_t counts) {
    std::vector<device::AskedRows> rows;
    for (const auto& [relation, options, keys, times, count] : asked) {
      const auto r = static_cast<std::size_t>(checked(relation, arrays_.size(), "edge type"));
      if (count < 0) throw nb::value_error("rows must not be fewer than 0");
      rows.push_back({arrays_[r], options, reinterpret_cast<const int64_t*>(keys),
                      reinterpret_cast<const int64_t*>(times), count, disjoint_ ? id_bits_[r] : 0,
                      disjoint_});
    }
    nb::gil_scoped_release release;
    return draw_->draw(rows, reinterpret_cast<int64_t*>(counts));
  }

  void write(uintptr_t entries, bool with_edges) {
    draw_->write(reinterpret_cast<int64_t*>(entries), with_edges);
  }

 private:
  SharedDevice device_;
  nb::list graphs_;
  std::vector<int> id_bits_;
  bool disjoint_;
  std::vector<device::GraphArrays> arrays_;
  std::unique_ptr<device::RowDraw> draw_;
};

}  // namespace

void bind_device_row_draw(nb::module_& m) {
  nb::class_<PyDeviceRowDraw>(m, "DeviceRowDraw",
                              R"(Draws of rows on a device, for batches that others build.

Draws are those of `DeviceSubgraph`, bit for bit. Arrays lie in the device's memory.

Args:
    device: the device.
    graphs: for each edge type, the rows that this process has, on the device.
    num_nodes: for each edge type, number of nodes of the type whose neighbours are drawn.
    disjoint: keys have trees.)")
      .def(nb::init<SharedDevice, nb::list, const std::vector<int64_t>&, bool>(), nb::arg("device"),
           nb::arg("graphs"), nb::arg("num_nodes"), nb::arg("disjoint"))
      .def("draw", &PyDeviceRowDraw::draw, nb::arg("asked"), nb::arg("counts"),
           R"(Draws edges of all rows. Waits.

Args:
    asked: sets of rows, each: edge type, options with the key of its batch's hop, address of [n]
        int64 keys of nodes, address of their times (0: none), n. All sets are drawn by one method.
    counts: address of an int64 for each row of all sets, the number of its edges.

Returns:
    For each set, the number of its edges.

Raises:
    IndexError: a node is not one of the graph's rows.
    ValueError: a fan-out of 0, or the graph lacks what the options need.)")
      .def("write", &PyDeviceRowDraw::write, nb::arg("entries"), nb::arg("with_edges"),
           "Writes the edges of the last draw, row by row: int64 neighbours, each with its edge "
           "behind it if these are wanted.");
}

}  // namespace khop::bindings
