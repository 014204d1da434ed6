"""Joining of batches in device memory: the device gathers attributes, small values are copied.

Runs in the trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from khop.data import Feature, RowStore
from khop.data.device_feature import DeviceFeature
from khop.data.node_rows import NodeGroup, joined_peers
from khop.data.row_division import Shards
from khop.loader.batches.collator import Collator, Owner
from khop.sampler.pyg.device import (
    DeviceOptions,
    TorchDevice,
    tensors_in,
    tensors_of,
    tensors_within,
    wait_and_record_stream,
)
from khop.sampler.pyg.output import SampledSubgraph
from khop.typing import NODE, Array, ArrayLike, NodeType

Hotness = ArrayLike | Mapping[NodeType, ArrayLike]


class OnDevice(NamedTuple):
    """Batch in device memory. `written` is the CUDA event of its completion. None if complete."""

    batch: Any
    written: Any

    def taken(self) -> Any:
        """Return the batch, after making torch's current CUDA stream wait for `written`."""
        if self.written is not None:
            wait_and_record_stream(tensors_in(self.batch), self.written)
        return self.batch


class DeviceJoiner(Collator):
    """Joiner that gathers attributes on a GPU, on another CUDA stream than the sampler's.

    `device` is the device's name, or the device that draws. `hotness` returns the probability that
    a batch needs each node. It is called at most once.
    """

    def __init__(self, device: Any, options: DeviceOptions, hotness: Callable[[], Hotness]) -> None:
        super().__init__(num_threads=1)
        self.device = device if isinstance(device, TorchDevice) else TorchDevice(device)
        self._options = options
        self._compute_hotness = hotness
        self._hotness = options.hotness
        self._begun: Any = None  # mark in the user's stream at the start of the epoch
        # A table is copied to the device once, and again if it is replaced or changed in place.
        self._features: dict[tuple[Owner, str], tuple[Any, Any, DeviceFeature]] = {}
        self._group_name = joined_peers().next_name() if options.group == "node" else None
        self._num_made: Counter[str] = Counter()

    @property
    def shards(self) -> dict[str, Shards]:
        """Division of each attribute's rows among devices and the host, by its name."""
        made = self._features.items()
        return {_name_of(*key): feature.shards for key, (_, _, feature) in made}

    def __reduce__(self) -> Any:
        """Raise TypeError: a device cannot be moved to another process."""
        raise TypeError("a loader with a device stays in its process: use worker_type='thread'")

    def join(self, join: Callable[[Any], Any], drawn: SampledSubgraph) -> OnDevice:
        """Make a batch: call `join(drawn)`, which uses this joiner, on the joiner's CUDA stream."""
        with self.device.lock, self.device.scope():
            wait_and_record_stream(tensors_of(drawn), drawn.written)
            try:
                batch = join(drawn)
                if self.device.native.is_cuda:
                    batch = batch.to(self.device.torch_device, non_blocking=True)
            finally:
                # Also if the batch failed: its tensors must live until the device has written them.
                written = self.device.mark()
            return OnDevice(batch, written)

    def forget(self) -> None:
        """Drop the plans and record an event on the user's stream. Runs in the user's thread."""
        super().forget()
        self._begun = self.device.mark_of_user()

    def use(self, value: Any) -> None:
        """Make the stream wait for writes to this GPU tensor that began before the epoch."""
        wait_and_record_stream(tensors_within(value), self._begun)

    def feature(
        self, value: RowStore | Tensor | Array, owner: Owner, name: str, of_nodes: bool
    ) -> DeviceFeature:
        """Return an attribute of the graph as a table from which the device gathers rows."""
        state = (value.data_ptr(), value._version) if isinstance(value, Tensor) else None
        known = self._features.pop((owner, name), None)
        if known is None or state is None or known[0] is not value or known[1] != state:
            del known  # free its device memory before the new table is made
            known = value, state, self._made(value, owner, name, of_nodes)
        self._features[owner, name] = known
        return known[2]

    def _made(
        self, value: RowStore | Tensor | Array, owner: Owner, name: str, of_nodes: bool
    ) -> DeviceFeature:
        options, native = self._options, self.device.native
        rows = value if isinstance(value, RowStore) else Feature(value)
        group = None
        if self._group_name is not None:
            attribute = _name_of(owner, name)
            self._num_made[attribute] += 1
            group = NodeGroup(f"{self._group_name}/{attribute}-{self._num_made[attribute]}")
        if not of_nodes or not options.is_split:
            return DeviceFeature(rows, native, options.feature_mode, group=group)

        def hotness() -> ArrayLike:
            if self._hotness is None:
                self._hotness = self._compute_hotness()
            if isinstance(self._hotness, Mapping):
                return self._hotness[NODE if owner is None else str(owner)]
            return self._hotness

        split = options.feature_mode, options.split_ratio, options.budget
        return DeviceFeature(rows, native, *split, hotness, group)

    def gather(self, feature: Any, index: Any) -> Tensor:
        """Return rows of a feature in device memory. A sampler drew the ids: they are unchecked."""
        dtype = getattr(torch, feature.dtype)
        out = self.device.empty((len(index), *feature.row_shape), dtype)
        feature.gather(index, out, wait=False)
        return out

    def blank(self, rows: Any, sections: Any, dim: int) -> None:
        """Set the padding of an attribute's rows to zero: by a kernel, if the rows are here."""
        is_here = (
            isinstance(sections, Tensor)
            and isinstance(rows, Tensor)
            and rows.device == self.device.torch_device
            and rows.is_contiguous()
        )
        if dim == 0 and is_here and len(rows):
            size = rows.nbytes // len(rows)
            native = self.device.native
            native.blank_rows(rows.data_ptr(), size, sections.data_ptr(), len(rows))
        else:
            super().blank(rows, sections, dim)

    def ids(self, index: Tensor) -> Any:
        """Return node or edge ids in the form that `gather` takes."""
        return index

    def to_graph_device(self, edge_index: Tensor, like: torch.device) -> Tensor:
        """Return `edge_index` unchanged: batches stay on this joiner's device."""
        return edge_index

    def on_host(self, tensor: Tensor | None) -> Tensor | None:
        """Copy a tensor to the CPU, for operations that only the CPU has."""
        return None if tensor is None else tensor.cpu()


def _name_of(owner: Owner, name: str) -> str:
    """Return an attribute's name with the type that has it: 'x', 'paper.x'."""
    if owner is None:
        return name
    return f"{owner if isinstance(owner, str) else '__'.join(owner)}.{name}"
