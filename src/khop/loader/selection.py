"""Seeds or links of a loader in memory, in the form that khop's sampler takes.

A batch selects them by position. Runs in the trainer and its worker processes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from khop.data.arrays import to_array
from khop.loader.batches.collate import is_plain, to_tensor
from khop.sampler.drawing.link import Links, LinkSampler
from khop.sampler.pyg.links import LinkOptions, links_of
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.requests import SeedSet
from khop.typing import Array, Int64Array


class NodeInputs:
    """Seeds of a loader, from which a batch selects its own by position.

    Raises:
        IndexError, ValueError: seeds do not exist, or times are invalid.
    """

    def __init__(self, sampler: NeighborSampler, inputs: NodeSamplerInput) -> None:
        self._seeds = sampler.seed_set(inputs)
        self._input_id = _Column(inputs.input_id)
        self._time = _Column(inputs.time)

    def take(self, positions: Int64Array) -> tuple[SeedSet, tuple[Tensor, Tensor | None]]:
        """Return the seeds at `positions` [n], and their (input_id, time).

        The result may share the memory of `positions`, so the caller must not change them later.
        """
        node_type, ids, times = self._seeds
        seeds = SeedSet(node_type, ids[positions], None if times is None else times[positions])
        input_id = self._input_id.take(positions)
        named = torch.from_numpy(positions) if input_id is None else input_id
        return seeds, (named, self._time.take(positions))


class LinkTags(NamedTuple):
    """Values of a batch's links that are added to the batch, by PyG's names."""

    input_id: Tensor
    label: Tensor | None
    time: Tensor | None


class LinkInputs:
    """Links of a loader, from which a batch selects its own by position.

    Raises:
        IndexError, ValueError: links do not exist, or times are invalid.
    """

    def __init__(
        self, sampler: NeighborSampler, inputs: EdgeSamplerInput, options: LinkOptions
    ) -> None:
        self.sampler: LinkSampler = sampler.link_sampler(inputs.input_type, options)
        self._links = links_of(inputs, sampler.info, self.sampler.spec)
        self._input_id = _Column(inputs.input_id)
        self._label = _Column(inputs.label)
        self._time = _Column(inputs.time)

    def take(self, positions: Int64Array) -> tuple[Links, LinkTags]:
        """Return the links at `positions` [n], and their ids, labels and times.

        The result may share the memory of `positions`, so the caller must not change them later.
        """
        links = self._links
        time = None if links.time is None else links.time[positions]
        input_id = self._input_id.take(positions)
        tags = LinkTags(
            torch.from_numpy(positions) if input_id is None else input_id,
            self._label.take(positions),
            self._time.take(positions),
        )
        return Links(links.src[positions], links.dst[positions], time), tags


class _Column:
    """A loader's values of all seeds or links, such as times. Batches select them by position.

    `values` may be None: then every selection is None. NumPy selects if it has the values' dtype.
    Little of torch's code stays in the CPU caches between batches, so its first operation takes 20
    us, and NumPy's 4 us.
    """

    def __init__(self, values: Tensor | None) -> None:
        self._values = values
        self._array: Array | None = None
        self._dtype = ""
        if values is not None and is_plain(values):
            self._array, self._dtype = to_array(values)

    def take(self, positions: Int64Array) -> Tensor | None:
        if self._array is not None:
            return to_tensor(self._array[positions], self._dtype)
        return None if self._values is None else self._values[torch.from_numpy(positions)]
