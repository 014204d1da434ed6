"""Links of which a device makes the seeds of a batch. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from khop import _native
from khop.sampler.drawing.link import Links, LinkSampler
from khop.sampler.link_spec import LinkSpec


class DeviceLinks:
    """Link batches on a device: it draws negatives, checks them, and makes seeds of all ends.

    Args:
        device: the device.
        sampler: the sampler whose batches these are, with links that a device takes.
        num_nodes: number of nodes of each node type.
    """

    def __init__(
        self, device: _native.Device, sampler: LinkSampler, num_nodes: Sequence[int]
    ) -> None:
        self._spec = spec = sampler.spec
        types = (spec.src_type, spec.dst_type)
        src, dst = (
            (num_nodes[of_type], None, None, None) if candidates is None else candidates.columns
            for of_type, candidates in zip(types, sampler.candidates, strict=True)
        )
        self._pairs = spec.mode == "binary"
        by_source = spec.edge_dir == "out"
        self._plan = _native.DeviceLinkPlan(
            device,
            types,
            src,
            dst,
            self._pairs,
            int(spec.amount) if spec.mode == "triplet" else 1,
            spec.relation if spec.strict else None,
            by_source,
            [(relation, turned != by_source) for relation, turned in spec.excluded],
        )

    @staticmethod
    def takes(spec: LinkSpec) -> bool:
        """Return True if a device can make batches of these links.

        It leaves out the edges of a type in one direction alone. The links of a graph with one node
        type and their reverses may have the same edge type.
        """
        relations = [relation for relation, _ in spec.excluded]
        return len(relations) == len(set(relations))

    def num_ends(self, num_links: int) -> int:
        """Return the number of ends of a batch's links and negatives."""
        negatives = self._spec.num_negatives(num_links)
        return 2 * num_links + (2 if self._pairs else 1) * negatives

    def request(self, links: Links, address: int) -> tuple[Any, ...]:
        """Return links in the form of `DeviceSubgraph.draw`, which writes positions to `address`.

        Positions are [num_ends] int64 in the order of the arrays of `LinkSeeds.index`.
        """
        return (
            self._plan,
            links.src,
            links.dst,
            links.time,
            self._spec.num_negatives(len(links)),
            address,
        )
