"""Two ways to draw a batch and join it with attributes. Run in the trainer and torch's workers.

`NativeWay` passes khop's own subgraphs from the draw to the join. `PygWay` passes PyG's
`SamplerOutput`, which users' samplers and hooks return and PyG's stores need. A loader chooses a
way when an epoch begins. Torch's worker processes always use `PygWay`, through `collate_fn`.
"""

from __future__ import annotations

import abc
from threading import get_native_id
from time import monotonic_ns
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop.loader.batches.collate import stack_endpoints
from khop.loader.batches.collator import Collator
from khop.loader.batches.device import DeviceJoiner
from khop.loader.batches.padding import Padder
from khop.loader.batches.stores import StoreJoiner
from khop.loader.iteration.epochs import KeyedBatch
from khop.loader.iteration.profile import DrawnBatch, Timed
from khop.sampler.pyg.base import PygSampler
from khop.sampler.pyg.device_drawer import Begun
from khop.sampler.pyg.draw_scope import BatchKey, batch_scope
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.pyg.output import SampledSubgraph, output_on_host, values_of
from khop.typing import Transform


class GraphLoader(Protocol):
    """Type of a loader here: the members of `khop.loader.base.EpochLoader` that are used."""

    data: Any
    input_data: Any
    filter_per_worker: bool
    transform_sampler_output: Transform | None
    _stores: StoreJoiner | None
    _joiner: Collator
    _device_joiner: DeviceJoiner | None
    _padder: Padder | None

    @property
    def _sampler(self) -> Any: ...

    def collate_fn(self, index: Any) -> Any: ...

    def filter_fn(self, out: Any) -> Any: ...

    def _is_replaced(self, name: str) -> bool: ...

    def _draw(self, inputs: Any, key: BatchKey | None) -> Any: ...

    def _draw_planned(self, positions: KeyedBatch) -> tuple[SampledSubgraph, Any]: ...

    def _collate(self, joiner: Collator, drawn: SampledSubgraph, metadata: Any) -> Any: ...

    def _annotate(self, batch: Any, metadata: Any) -> None: ...

    def _add_values(self, batch: Any, values: Any) -> None: ...

    def _join_by_pyg(self, out: Any) -> Any: ...


def way_of(loader: GraphLoader) -> Way:
    """Choose how a loader makes batches: by PyG's form if a hook, a store or the sampler needs it.

    Otherwise by khop's own, which is faster.
    """
    sampler, data = loader._sampler, loader.data
    is_plain = (
        loader.transform_sampler_output is None
        and type(sampler) is NeighborSampler
        and not (loader._is_replaced("collate_fn") or loader._is_replaced("filter_fn"))
    )
    if is_plain and not sampler.graph.is_heterogeneous:
        is_plain = isinstance(data, Data)
    elif is_plain:
        is_plain = (
            isinstance(data, HeteroData)
            and list(data._node_store_dict) == sampler.graph.node_types
            and list(data._edge_store_dict) == sampler.graph.edge_types
        )
    return NativeWay(loader) if is_plain else PygWay(loader)


class BegunBatch(NamedTuple):
    """Batch that a device is drawing.

    Attributes:
        task: its seeds and key.
        drawing: the launched draw.
        metadata: the seeds' metadata.
        took: nanoseconds of the launch.
    """

    task: KeyedBatch
    drawing: Begun
    metadata: Any
    took: int


class Way(abc.ABC):
    """Sampler and joiner of the batches of an epoch. Background threads may call its methods.

    Attributes:
        begins: True if `begin` may begin a batch before earlier ones are drawn.
    """

    begins = False

    def __init__(self, loader: GraphLoader) -> None:
        self._loader = loader
        self._collates = loader._is_replaced("collate_fn")
        self._filters = loader._is_replaced("filter_fn")

    @property
    def joins_here(self) -> bool:
        """True if the iterating thread joins the subgraphs that other threads have drawn.

        `filter_per_worker=False` requests this, for stores that only one thread may use. PyG also
        sets it for data on a GPU, which any thread may read. Then only users' functions need it.
        """
        if self._loader.filter_per_worker:
            return False
        is_replaced = self._collates or self._filters
        return is_replaced or not getattr(self._loader.data, "is_cuda", False)

    def begin(self, batch: KeyedBatch) -> BegunBatch:
        """Launch the draw of a batch for `draw`, without a wait. Only if `begins` is True."""
        raise NotImplementedError

    def draw(self, batch: KeyedBatch | BegunBatch) -> DrawnBatch:
        """Sample the subgraph of a batch, and return it with its times."""
        began = monotonic_ns()
        drawn, metadata, size = self._drawn(batch)
        if isinstance(batch, BegunBatch):
            began -= batch.took
            batch = batch.task
        index, num_seeds, ended = batch.key.batch, len(batch.positions), monotonic_ns()
        return DrawnBatch(drawn, metadata, index, num_seeds, size, get_native_id(), began, ended)

    @abc.abstractmethod
    def _drawn(self, batch: Any) -> tuple[Any, Any, tuple[int, int]]:
        """Sample a batch. Return the subgraph, the seeds' metadata and (num_nodes, num_edges)."""

    @abc.abstractmethod
    def join(self, drawn: DrawnBatch) -> Timed:
        """Join a sampled subgraph with its attributes. Return the batch with its times."""

    def make(self, batch: KeyedBatch | BegunBatch) -> Timed:
        """Sample a batch and join it with its attributes."""
        return self.join(self.draw(batch))


class NativeWay(Way):
    """Maker of batches that uses khop's own subgraphs, on the CPU or on a GPU."""

    def __init__(self, loader: GraphLoader) -> None:
        super().__init__(loader)
        self._begin_planned = getattr(loader, "_begin_planned", None)
        self.begins = loader._device_joiner is not None and self._begin_planned is not None

    def begin(self, batch: KeyedBatch) -> BegunBatch:
        assert self._begin_planned is not None
        began = monotonic_ns()
        drawing, metadata = self._begin_planned(batch)
        return BegunBatch(batch, drawing, metadata, monotonic_ns() - began)

    def _drawn(
        self, batch: KeyedBatch | BegunBatch
    ) -> tuple[SampledSubgraph, Any, tuple[int, int]]:
        if self.begins and not isinstance(batch, BegunBatch):
            batch = self.begin(batch)
        if isinstance(batch, BegunBatch):
            drawn, metadata = batch.drawing.finish(), batch.metadata
        else:
            drawn, metadata = self._loader._draw_planned(batch)
        if len(drawn.nodes) == len(drawn.edge_index) == 1:
            return drawn, metadata, (drawn.nodes[0].numel(), drawn.edge_index[0].shape[1])
        num_edges = sum(ends.shape[1] for ends in drawn.edge_index)
        return drawn, metadata, (sum(node.numel() for node in drawn.nodes), num_edges)

    def join(self, drawn: DrawnBatch) -> Timed:
        began, loader = monotonic_ns(), self._loader
        if (device_joiner := loader._device_joiner) is None:
            batch = loader._collate(loader._joiner, drawn.subgraph, drawn.metadata)
        else:
            batch = device_joiner.join(
                lambda subgraph: loader._collate(device_joiner, subgraph, drawn.metadata),
                drawn.subgraph,
            )
        return Timed(batch, drawn, get_native_id(), began, monotonic_ns())


class PygWay(Way):
    """Maker of batches that uses PyG's `SamplerOutput`, and calls a user's own functions."""

    def _drawn(self, batch: KeyedBatch) -> tuple[Any, None, tuple[int, int]]:
        if not self._collates:
            out = self.sample(batch)
        else:
            with batch_scope(batch.key):
                out = self._loader.collate_fn(batch.positions.tolist())
        if isinstance(out, Data | HeteroData):
            return out, None, (out.num_nodes or 0, out.num_edges)
        # A replaced `collate_fn` may return anything else: the numbers are then 0.
        return out, None, (_count(getattr(out, "node", None)), _count(getattr(out, "row", None)))

    def join(self, drawn: DrawnBatch) -> Timed:
        began, batch = monotonic_ns(), drawn.subgraph
        is_replaced = self._collates or self._filters
        if not is_replaced:
            batch = self.joined(batch)
        elif not (self._collates and self._loader.filter_per_worker):
            with batch_scope():
                batch = self._loader.filter_fn(batch)
        return Timed(batch, drawn, get_native_id(), began, monotonic_ns(), is_replaced)

    def sample(self, positions: Any) -> Any:
        """Sample a batch, or the seeds at `positions`. Return CPU tensors, for hooks and stores."""
        loader, key = self._loader, None
        if isinstance(positions, KeyedBatch):
            positions, key = torch.from_numpy(positions.positions), positions.key
        with batch_scope(key):
            out = loader._draw(loader.input_data[positions], key)
        return out if loader._device_joiner is None else output_on_host(out)

    def joined(self, out: Any) -> Any:
        """Join a sampled subgraph with its attributes, by khop's kernels if possible.

        Raises:
            TypeError: `out` is not an output of a sampler.
            ValueError: `out` lacks the sampling method's own values, such as `edge_norm`.
        """
        loader = self._loader
        hook, sampler = loader.transform_sampler_output, loader._sampler
        if hook is not None:
            out = hook(out)
        if not isinstance(out, SamplerOutput | HeteroSamplerOutput):
            returned_by = type(sampler).__name__ if hook is None else "transform_sampler_output"
            raise TypeError(
                f"found invalid type '{type(out)}': {returned_by} must return a SamplerOutput or "
                "a HeteroSamplerOutput"
            )
        if isinstance(sampler, PygSampler):
            _check_values(out, sampler)
        is_as_drawn = getattr(out, "orig_row", None) is None
        if loader._stores is not None and is_as_drawn:
            batch = loader._stores.join(out, sampler.edge_permutation)
            if loader._padder is not None:
                loader._padder.pad_batch(batch, loader._stores.rows(batch))
            loader._annotate(batch, out.metadata)
        elif (
            is_as_drawn
            and isinstance(sampler, NeighborSampler)
            and (drawn := native_form(out, loader.data)) is not None
        ):
            return loader._collate(loader._joiner, drawn, out.metadata)
        elif loader._padder is not None:
            raise ValueError(
                "pad= needs outputs as khop's sampler draws them, but transform_sampler_output has "
                "removed types, or has set orig_row: pad batches by torch_geometric.transforms.Pad"
            )
        else:
            batch = loader._join_by_pyg(out)
        loader._add_values(batch, values_of(out))
        return batch


def _check_values(out: Any, sampler: PygSampler) -> None:
    """Raise ValueError unless an output has the method's own values, one per node or edge.

    Users' hooks may have removed values, nodes or edges from the output of khop's sampler.
    """
    delivered, values = sampler.spec.method.delivered, values_of(out)
    if delivered and not values:
        raise ValueError(
            f"the sampler's output has lost {', '.join(delivered)}: pass its `metadata` on as "
            "it is, for example by dataclasses.replace(out, ...)"
        )
    for name, value in values.items():
        owner, _, attribute = name.rpartition(".")
        if not owner:
            continue
        of_nodes, index = owner[0] == "n", int(owner[1:])
        ids = out.node if of_nodes else out.row
        if isinstance(ids, dict):
            types = sampler.info.node_types if of_nodes else sampler.info.edge_types
            ids = ids.get(types[index], ())
        if len(ids) != len(value):
            raise ValueError(
                f"the sampler's output has {len(ids)} {'nodes' if of_nodes else 'edges'}, but "
                f"'{attribute}' is of {len(value)}: change its metadata.values['{name}'], too"
            )


def native_form(
    out: SamplerOutput | HeteroSamplerOutput, data: Data | HeteroData
) -> SampledSubgraph | None:
    """Convert a subgraph from PyG's form to khop's. None if a user's hook has removed types."""
    if isinstance(out, SamplerOutput) and isinstance(data, Data):
        return SampledSubgraph(
            [out.node],
            [stack_endpoints(out.row, out.col)],
            [out.edge],
            None if out.batch is None else [out.batch],
            None if out.num_sampled_nodes is None else [out.num_sampled_nodes],
            None if out.num_sampled_edges is None else [out.num_sampled_edges],
            values_of(out),
        )
    if not isinstance(out, HeteroSamplerOutput) or not isinstance(data, HeteroData):
        return None
    node_types, edge_types = data.node_types, data.edge_types
    is_complete = set(out.node) == set(node_types) and all(
        isinstance(by_type, dict) and set(by_type) == set(edge_types)
        for by_type in (out.row, out.col, out.edge)
    )
    if not is_complete:
        return None
    return SampledSubgraph(
        [out.node[t] for t in node_types],
        [stack_endpoints(out.row[t], out.col[t]) for t in edge_types],
        [out.edge[t] for t in edge_types],
        _in_order(out.batch, node_types),
        _in_order(out.num_sampled_nodes, node_types),
        _in_order(out.num_sampled_edges, edge_types),
        values_of(out),
    )


def _in_order(by_type: dict[Any, Any] | None, types: list[Any]) -> list[Any] | None:
    return None if by_type is None else [by_type.get(t) for t in types]


def _count(ids: Any) -> int:
    if isinstance(ids, Tensor):
        return ids.numel()
    return 0 if ids is None else sum(map(_count, ids.values()))
