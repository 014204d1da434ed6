"""Draws and rows of a trainer's own partition, by the CPU or on a device. Runs in trainers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from khop import _native
from khop.data import Feature
from khop.data.device_feature import DeviceFeature
from khop.distributed.dataset import DistDataset
from khop.loader.batches.collate import to_tensor
from khop.sampler.device.engine import graphs_on
from khop.sampler.drawing.view import GraphView
from khop.sampler.pyg.device import TorchDevice, wait_and_record_stream
from khop.sampler.requests import HopRequest, RowSet
from khop.storage.part import Part

_IDS = ("id", "edge_id")


class OwnPart:
    """A partition of one node and edge type, whose rows the CPU draws and gathers.

    Attributes:
        torch_device: device of all tensors.

    Args:
        part: the partition.
    """

    torch_device = torch.device("cpu")

    def __init__(self, part: Part) -> None:
        self._part = part

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Return a context for all other methods."""
        yield

    def draw(self, rows: Tensor, request: HopRequest) -> tuple[Tensor, Tensor, Tensor]:
        """Return counts, neighbours and edges of nodes of the partition, [n] int64 each."""
        drawn = RowSet(rows.numpy()).draw(self._part.csrs[0], request)
        counts, neighbors, edges = (torch.from_numpy(np.asarray(a, np.int64)) for a in drawn)
        return counts, neighbors, edges

    def gather(self, unit: str, name: str, rows: Tensor) -> Tensor:
        """Return rows of an attribute of 'node' or 'edge', by position in the partition."""
        store = self._part.feature(unit, 0, name)
        values = store.gather(rows.numpy())
        if name in _IDS:
            return torch.from_numpy(values.astype(np.int64))
        return to_tensor(values, store.dtype)

    def deliver(self, tensors: Iterable[Tensor]) -> None:
        """Let torch's current stream use tensors that were made within `scope`."""


class OwnPartOnDevice(OwnPart):
    """The same on a device, by its kernels and in its memory.

    Args:
        part: the partition.
        data: its dataset, which has the placement of graph and attributes.
        device: name of the device.

    Raises:
        ValueError: the dataset is for the CPU alone.
        RuntimeError: the device cannot be used. The message has the reason.
    """

    def __init__(self, part: Part, data: DistDataset, device: object) -> None:
        super().__init__(part)
        if data.graph_mode == "CPU":
            raise ValueError(
                "device is for datasets that are loaded with graph_mode='ZERO_COPY' or 'CUDA' (got "
                "'CPU')"
            )
        self._device = TorchDevice(str(device))
        self.torch_device = self._device.torch_device
        self._mode = data.feature_mode
        self._features: dict[tuple[str, str], DeviceFeature] = {}
        with self.scope():
            native, view = self._device.native, GraphView.of_part(part)
            graphs = graphs_on(native, view, data.graph_mode)
            self._draw = _native.DeviceRowDraw(native, graphs, view.num_nodes, False)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with self._device.lock, self._device.scope():
            yield

    def draw(self, rows: Tensor, request: HopRequest) -> tuple[Tensor, Tensor, Tensor]:
        counts = torch.zeros_like(rows)
        if request.fanout == 0:
            return counts, rows[:0], rows[:0]
        asked = (0, request.options(), rows.data_ptr(), 0, len(rows))
        (total,) = self._draw.draw([asked], counts.data_ptr())
        entries = self._device.empty([total, 2])
        self._draw.write(entries.data_ptr(), True)
        neighbors, edges = entries.t().contiguous()
        return counts, neighbors, edges

    def gather(self, unit: str, name: str, rows: Tensor) -> Tensor:
        feature = self._features.get((unit, name))
        if feature is None:
            store = self._part.feature(unit, 0, name)
            if name in _IDS:
                store = Feature(store.gather(np.arange(store.num_rows)).astype(np.int64))
            feature = DeviceFeature(store, self._device.native, self._mode)
            self._features[unit, name] = feature
        out = self._device.empty([len(rows), *feature.row_shape], getattr(torch, feature.dtype))
        feature.gather(rows, out, wait=False)  # they were drawn here, so they exist
        return out

    def deliver(self, tensors: Iterable[Tensor]) -> None:
        wait_and_record_stream(tensors, self._device.mark())
