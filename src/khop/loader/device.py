"""Batches in the memory of a device: attributes are gathered there, what is small is copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from khop.data import Feature
from khop.data.device_feature import DeviceFeature
from khop.loader.collator import Collator
from khop.sampler.device import (
    DeviceOptions,
    TorchDevice,
    tensors_in,
    tensors_of,
    tensors_within,
    wait_and_record_stream,
)
from khop.sampler.pyg_output import SampledSubgraph
from khop.typing import NODE, ArrayLike, EdgeType, NodeType

Hotness = ArrayLike | Mapping[NodeType, ArrayLike]


class OnDevice(NamedTuple):
    """A batch, and when a device will have written it."""

    batch: Any
    written: Any

    def taken(self) -> Any:
        """The batch, for torch's current stream."""
        if self.written is not None:
            wait_and_record_stream(tensors_in(self.batch), self.written)
        return self.batch


class DeviceJoiner(Collator):
    """Joins batches in the memory of a device, on a stream beside the one that draws.

    Args:
        name: of the device.
        options: where attributes lie.
        hotness: computes how likely a batch is to need each node; asked once, if that matters.
    """

    def __init__(self, name: Any, options: DeviceOptions, hotness: Callable[[], Hotness]) -> None:
        super().__init__(num_threads=1)
        self.device = TorchDevice(name)
        self._options = options
        self._ask_hotness = hotness
        self._hotness = options.hotness
        self._begun: Any = None  # the moment of the user's stream at which the epoch began
        # A table is taken to the device once, until it is exchanged or changed in place.
        self._features: dict[tuple[Any, str], tuple[Any, Any, DeviceFeature]] = {}

    def __reduce__(self) -> Any:
        """A device stays in its process."""
        raise TypeError("a loader with a device stays in its process: use worker_type='thread'")

    def join(self, join: Callable[[Any], Any], drawn: SampledSubgraph) -> OnDevice:
        """Makes a batch.

        Args:
            join: makes it of the subgraph, on this joiner.
            drawn: what was drawn.
        """
        with self.device.lock, self.device.scope():
            wait_and_record_stream(tensors_of(drawn), drawn.written)
            try:
                batch = join(drawn)
                if self.device.native.is_cuda:
                    batch = batch.to(self.device.torch_device, non_blocking=True)
            finally:
                # Also of a batch that failed: its tensors go when nobody writes to them any more.
                written = self.device.mark()
            return OnDevice(batch, written)

    def forget(self) -> None:
        """As of `Collator`; called by the user's thread when an epoch begins."""
        super().forget()
        self._begun = self.device.mark_of_user()

    def use(self, value: Any) -> None:
        """As of `Collator`. What was written to a GPU before the epoch began is waited for."""
        wait_and_record_stream(tensors_within(value), self._begun)

    def feature(
        self, value: Any, kind: NodeType | EdgeType | None, name: str, of_nodes: bool
    ) -> DeviceFeature:
        """A table on the device."""
        state = (value.data_ptr(), value._version) if isinstance(value, Tensor) else None
        known = self._features.pop((kind, name), None)
        if known is None or state is None or known[0] is not value or known[1] != state:
            del known  # what it took of the device may be needed for its successor
            known = value, state, self._made(value, kind, of_nodes)
        self._features[kind, name] = known
        return known[2]

    def _made(self, value: Any, kind: Any, of_nodes: bool) -> DeviceFeature:
        options, native = self._options, self.device.native
        if not of_nodes or not options.is_split:
            return DeviceFeature(Feature(value), native, options.feature_mode)
        return DeviceFeature(
            Feature(value),
            native,
            options.feature_mode,
            options.split_ratio,
            options.budget,
            self._hotness_of(kind),
        )

    def _hotness_of(self, kind: NodeType | None) -> ArrayLike:
        if self._hotness is None:
            self._hotness = self._ask_hotness()
        if isinstance(self._hotness, Mapping):
            return self._hotness[NODE if kind is None else kind]
        return self._hotness

    def gather(self, feature: Any, index: Any) -> Tensor:
        """Rows of a feature, in the device's memory. They exist: a sampler has drawn them."""
        dtype = getattr(torch, feature.dtype)
        out = self.device.empty((len(index), *feature.row_shape), dtype)
        feature.gather(index, out, wait=False)
        return out

    def ids(self, index: Tensor) -> Any:
        """Ids as `gather` takes them."""
        return index

    def place(self, edge_index: Tensor, like: torch.device) -> Tensor:
        """The endpoints, where the batch has them."""
        return edge_index

    def on_host(self, tensor: Tensor | None) -> Tensor | None:
        """A tensor for what only the CPU can do."""
        return None if tensor is None else tensor.cpu()
