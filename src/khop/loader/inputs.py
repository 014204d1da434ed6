"""A loader's seeds or links in the sampler's form: checked once, cut into batches by position."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from khop.sampler.link import Links, LinkSampler
from khop.sampler.neighbor import NeighborSampler
from khop.sampler.pyg_links import LinkOptions, links_of
from khop.sampler.requests import SeedSet
from khop.typing import Int64Array


class NodeInputs:
    """The seeds of a loader.

    Args:
        sampler: what will draw their neighbourhoods.
        inputs: the seeds, as PyG's loader keeps them.

    Raises:
        IndexError, ValueError: what `sampler` says of seeds that do not exist, or of their times.
    """

    def __init__(self, sampler: NeighborSampler, inputs: NodeSamplerInput) -> None:
        self._seeds = sampler.seed_set(inputs)
        self._inputs = inputs

    def take(self, positions: Int64Array) -> tuple[SeedSet, tuple[Tensor, Tensor | None]]:
        """Seeds by their positions, which are kept; (input_id, time) of each."""
        node_type, ids, times = self._seeds
        index = torch.from_numpy(positions)
        return (
            SeedSet(node_type, ids[positions], None if times is None else times[positions]),
            (_input_id(self._inputs, index), _rows(self._inputs.time, index)),
        )


class LinkTags(NamedTuple):
    """What `link_metadata` reads of a batch's links, by the names that PyG gives it."""

    input_id: Tensor
    label: Tensor | None
    time: Tensor | None


class LinkInputs:
    """The links of a loader.

    Args:
        sampler: what will draw their neighbourhoods.
        inputs: the links, as PyG's loader keeps them.
        options: what batches shall be.

    Raises:
        IndexError, ValueError: what the sampler says of links that do not exist, or of their times.
    """

    def __init__(
        self, sampler: NeighborSampler, inputs: EdgeSamplerInput, options: LinkOptions
    ) -> None:
        self.sampler: LinkSampler = sampler.link_sampler(inputs.input_type, options)
        self._links = links_of(inputs, sampler.graph, self.sampler.spec)
        self._inputs = inputs

    def take(self, positions: Int64Array) -> tuple[Links, LinkTags]:
        """Links by their positions, which are kept; and what else is known of each."""
        links, inputs = self._links, self._inputs
        index = torch.from_numpy(positions)
        time = None if links.time is None else links.time[positions]
        tags = LinkTags(
            _input_id(inputs, index), _rows(inputs.label, index), _rows(inputs.time, index)
        )
        return Links(links.src[positions], links.dst[positions], time), tags


def _input_id(inputs: Any, index: Tensor) -> Tensor:
    """The names of inputs: those that the user gave, else their positions."""
    return index if inputs.input_id is None else inputs.input_id[index]


def _rows(values: Tensor | None, index: Tensor) -> Tensor | None:
    return None if values is None else values[index]
