// What all batches of a sampler on a device have in common.
#include <nanobind/stl/shared_ptr.h>

#include "khop/bindings/device_links.hpp"
#include "khop/bindings/device_plan.hpp"

namespace khop::bindings {

void bind_device_plans(nb::module_& m) {
  nb::class_<PyDevicePlan>(m, "DevicePlan",
                           R"(What all batches of a sampler on a device have in common.

Args:
    device, graphs, hops, cuda_graph: as of `DeviceSubgraph` and its `sample`.
    names: as of `DeviceSubgraph.write`.
    named: for each edge type, whether batches have the names of edges.
    backward: exchange rows and columns.
    padding: (nodes, edges, leaves_room, disjoint) of batches that `draw` pads: sizes of the sections
        of each node type (seeds, then hops) and edge type (hops), whether a section must not be
        full, and whether batches are disjoint.

Raises:
    IndexError: there are fewer names than edges.
    ValueError: arguments for another number of edge types, or graphs of another device. Malformed
        padding.)")
      .def(nb::init<SharedDevice, nb::list, HopTable, bool, const Names&, const std::vector<bool>&,
                    bool, const std::optional<Padding>&>(),
           nb::arg("device"), nb::arg("graphs"), nb::arg("hops"), nb::arg("cuda_graph"),
           nb::arg("names"), nb::arg("named"), nb::arg("backward") = false,
           nb::arg("padding").none() = nb::none())
      .def_prop_ro(
          "lengths", &PyDevicePlan::lengths,
          "Entries of each array of a padded batch's block; empty: batches are not padded.")
      .def_prop_ro("block_words", &PyDevicePlan::block_words,
                   "Entries that a block for the next batch should have; 0: not known yet.");
  nb::class_<PyDeviceLinkPlan>(m, "DeviceLinkPlan",
                               R"(What all batches of links of a sampler on a device have in common.

Args:
    device: the device.
    types: node types of sources and of destinations.
    src_from, dst_from: nodes that ends of negatives are drawn from: their number, and [number]
        int64 inclusive sums of weights (None: all weigh 1), ids in the order in which they come to
        exist (None: 0, 1, ...), and ascending times from which they exist (None: always).
    pairs: negatives have sources of their own, which are seeds.
    amount: negatives of a link, without pairs.
    relation: edge type of which negatives are no edges; None: they may be.
    rows_are_sources: rows of that edge type hold the destinations of a source.
    excluded: edge types of which edges that join a link are left out, each with the same about its
        rows.

Raises:
    ValueError: arrays of other lengths, sums that do not ascend, or ids that do not exist.)")
      .def(nb::init<SharedDevice, std::pair<int32_t, int32_t>, const PyTimedCandidates&,
                    const PyTimedCandidates&, bool, int64_t, std::optional<int32_t>, bool,
                    const std::vector<std::pair<int32_t, bool>>&>(),
           nb::arg("device"), nb::arg("types"), nb::arg("src_from"), nb::arg("dst_from"),
           nb::arg("pairs"), nb::arg("amount"), nb::arg("relation").none(),
           nb::arg("rows_are_sources"), nb::arg("excluded") = nb::list());
}

}  // namespace khop::bindings
