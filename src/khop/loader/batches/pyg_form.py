"""Batches in PyG's form between sampling and joining. Runs in the trainer and torch's workers.

The way of batches that khop's own cannot make: a user's sampler or `transform_sampler_output` needs
PyG's `SamplerOutput`, stores are read through PyG's interface, and torch's worker processes call
`collate_fn`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop.loader.batches.collate import add_values
from khop.loader.batches.collator import Collator, drawn_of_data, drawn_of_hetero_data
from khop.loader.batches.device import DeviceJoiner
from khop.loader.batches.stores import StoreJoiner
from khop.loader.iteration.epochs import KeyedBatch
from khop.sampler.pyg.base import PygSampler
from khop.sampler.pyg.draw_scope import BatchKey, batch_scope
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.pyg.output import SampledSubgraph, output_on_host, values_of


class PygForm:
    """Mixin of a PyG loader: `collate_fn` and `filter_fn`, PyG's two steps of making a batch."""

    data: Any
    input_data: Any
    transform: Any
    transform_sampler_output: Any
    filter_per_worker: bool
    _stores: StoreJoiner | None
    _joiner: Collator
    _device_joiner: DeviceJoiner | None

    pyg_loader: ClassVar[Any]
    """PyG loader whose `filter_fn` joins batches."""

    read_by_pyg: ClassVar[tuple[str, ...]]
    """Attributes that `filter_fn` reads from a loader, without the hooks."""

    # Defined by the loaders of nodes and of links.

    @property
    def _sampler(self) -> Any:
        """Sampler of the batches."""
        raise NotImplementedError

    def _draw(self, inputs: Any, key: BatchKey | None) -> Any:
        """Sample a batch of the loader's input."""
        raise NotImplementedError

    def _annotate(self, batch: Any, metadata: Any) -> None:
        """Add the attributes about its seeds to a batch."""
        raise NotImplementedError

    # Shared by all loaders.

    def collate_fn(self, index: Any) -> Any:
        """Sample a batch of seeds, given by their positions in the input.

        Subclasses may override it and `filter_fn`, and users may set both on a loader; they are
        called as PyG calls them, with a list of positions.
        """
        out = self._sample(index)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Any) -> Any:
        """Join a sampled subgraph with its attributes and apply the transform."""
        batch = self._join(out)
        return batch if self.transform is None else self.transform(batch)

    @property
    def collates_otherwise(self) -> bool:
        """True if a subclass or the user has replaced `collate_fn`."""
        return self._is_replaced("collate_fn")

    @property
    def filters_otherwise(self) -> bool:
        """True if a subclass or the user has replaced `filter_fn`."""
        return self._is_replaced("filter_fn")

    def _is_replaced(self, name: str) -> bool:
        return name in self.__dict__ or getattr(type(self), name) is not getattr(PygForm, name)

    def _sample(self, positions: Any) -> Any:
        """Sample a batch on the host, where hooks and stores expect it."""
        key = None
        if isinstance(positions, KeyedBatch):
            positions, key = torch.from_numpy(positions.positions), positions.key
        with batch_scope(key):
            out = self._draw(self.input_data[positions], key)
        return out if self._device_joiner is None else output_on_host(out)

    def _collated(self, batch: KeyedBatch) -> Any:
        """Call `collate_fn` as PyG does, in the scope of a batch."""
        with batch_scope(batch.key):
            return self.collate_fn(batch.positions.tolist())

    def _join(self, out: Any) -> Any:
        """Join a sampled subgraph with its attributes; by khop's code, where that can."""
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        if not isinstance(out, SamplerOutput | HeteroSamplerOutput):
            hook = self.transform_sampler_output is not None
            raise TypeError(
                f"found invalid type '{type(out)}': "
                f"{'transform_sampler_output' if hook else type(self._sampler).__name__} must "
                "return a SamplerOutput or a HeteroSamplerOutput"
            )
        self._check_values(out)
        if self._stores is not None and _is_as_drawn(out):
            batch = self._stores.join(out, self._sampler.edge_permutation)
            self._annotate(batch, out.metadata)
        elif (drawn := self._native_form(out)) is not None:
            return self._collate(self._joiner, drawn, out.metadata)
        else:
            batch = self._joined_by_pyg(out)
        self._add_values(batch, values_of(out))
        return batch

    def _check_values(self, out: Any) -> None:
        """Raise ValueError unless an output has what the method delivers, for its nodes and edges.

        Hooks and samplers of users may return other outputs than khop's sampler.
        """
        if not isinstance(self._sampler, PygSampler):
            return
        delivered = self._sampler.spec.method.delivered
        values = values_of(out)
        if delivered and not values:
            raise ValueError(
                f"the sampler's output has lost {', '.join(delivered)}: pass its `metadata` on as "
                "it is, for example by dataclasses.replace(out, ...)"
            )
        info = self._sampler.info
        for name, value in values.items():
            kind, _, attribute = name.rpartition(".")
            if not kind:
                continue
            of_nodes, place = kind[0] == "n", int(kind[1:])
            ids = out.node if of_nodes else out.row
            if isinstance(ids, dict):
                ids = ids.get((info.node_types if of_nodes else info.edge_types)[place], ())
            if len(ids) != len(value):
                raise ValueError(
                    f"the sampler's output has {len(ids)} {'nodes' if of_nodes else 'edges'}, but "
                    f"'{attribute}' is of {len(value)}: change its metadata.values['{name}'], too"
                )

    def _add_values(self, batch: Any, values: Mapping[str, Any]) -> None:
        """Add what the sampling method delivers beside nodes and edges."""
        if values:
            info = self._sampler.info
            add_values(batch, values, info.node_types, list(info.edge_types))

    def _native_form(self, out: Any) -> SampledSubgraph | None:
        """Return the output of a khop sampler with all types present in khop's form; else None."""
        if not _is_as_drawn(out) or not isinstance(self._sampler, NeighborSampler):
            return None
        if isinstance(out, SamplerOutput) and isinstance(self.data, Data):
            return drawn_of_data(out)
        if isinstance(out, HeteroSamplerOutput) and isinstance(self.data, HeteroData):
            return drawn_of_hetero_data(out, self.data)
        return None

    def _collate(self, joiner: Collator, drawn: SampledSubgraph, metadata: Any) -> Any:
        """Join a subgraph in khop's form with its attributes and those of its seeds."""
        join = joiner.join_data if isinstance(self.data, Data) else joiner.join_hetero_data
        batch: Any = join(self.data, drawn)
        self._annotate(batch, metadata)
        self._add_values(batch, drawn.values)
        return batch

    def _joined_by_pyg(self, out: Any) -> Any:
        # PyG's method gets the attributes that it reads. The hooks were applied before.
        read = {name: getattr(self, name) for name in self.read_by_pyg}
        plain = SimpleNamespace(**read, transform=None, transform_sampler_output=None)
        return self.pyg_loader.filter_fn(plain, out)


def _is_as_drawn(out: Any) -> bool:
    return getattr(out, "orig_row", None) is None
