// What all batches of links of a sampler on a device have in common.
#include "khop/bindings/device_links.hpp"

#include <nanobind/stl/shared_ptr.h>

#include "khop/bindings/module.hpp"

namespace khop::bindings {

void bind_device_links(nb::module_& m) {
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
