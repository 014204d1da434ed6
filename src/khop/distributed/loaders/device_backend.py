"""Maker of batches that trainers draw together on their GPUs, and what it cannot make.

Runs in trainers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from khop.channel.layout import Received, Record
from khop.data.device import check_device
from khop.distributed.dataset import DistDataset
from khop.distributed.loaders.device_exchange import DeviceExchange
from khop.distributed.loaders.exchanged_draws import ExchangedEngine
from khop.distributed.loaders.exchanged_rows import ExchangedCollector
from khop.distributed.loaders.in_process import TogetherBackend
from khop.distributed.loaders.trainer_group import TrainerGroup
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.forks import check_process
from khop.sampler.device.engine import graphs_on
from khop.sampler.drawing.view import GraphView
from khop.sampler.pyg.device import TorchDevice, wait_and_record_stream

_REMEDY = (
    "Load the dataset with graph_mode='CPU': the CPU draws, and batches are copied to the device"
)


class DeviceExchangeBackend(TogetherBackend):
    """Maker of batches that all trainers draw together, each on its device.

    Args:
        data: the dataset. Each partition is the home of a trainer.
        spec: specification of the batches.
        device: name of this trainer's device.
        group: the trainers. If None, all partitions are here: there is one.
        batch_size: maximum number of seeds in a batch of any trainer.
    """

    def __init__(
        self,
        data: DistDataset,
        spec: PipelineSpec,
        device: str,
        group: TrainerGroup | None,
        batch_size: int,
    ) -> None:
        part, rank = data.connected_part(), data.context.rank
        self._device = on = TorchDevice(device)
        owners = [
            [r for r, home in enumerate(data.homes) if home == p]
            for p in range(data.num_partitions)
        ]
        answering = [
            0 if group is None else rank if rank in ranks else ranks[rank % len(ranks)]
            for ranks in owners
        ]
        view = GraphView.of_part(part)
        with on.lock, on.scope():
            self._exchange = exchange = DeviceExchange(
                on.torch_device, group, answering, data.homes
            )
            graphs = graphs_on(on.native, view, data.graph_mode)
            engine = ExchangedEngine(view, spec.sampling, on, graphs, exchange, batch_size)
            collector = ExchangedCollector(
                part, spec.collect, on, data.feature_mode, exchange, engine.most_rows
            )
        super().__init__(exchange, part, spec, None, {}, made_by=(engine, collector))

    def take(self, epoch_id: int, batch: int) -> Received:
        """Make a batch, while the other trainers make theirs."""
        check_process(self._owner, "group of trainers", "make a loader there")
        with self._device.lock, self._device.scope():
            received = super().take(epoch_id, batch)
            written = self._device.mark()
        wait_and_record_stream(received.arrays, written)
        return received

    def _memory_of(self, record: Record) -> tuple[Mapping[str, Any], Any]:
        head = bytearray(record.layout.head_bytes)
        record.write_head(memoryview(head))
        arrays = {
            of.name: self._device.empty(shape, getattr(torch, of.dtype))
            for of, shape, _ in record.positions()
        }
        return arrays, (head, arrays)

    def _read(self, record: Record, memory: Any) -> Received:
        head, arrays = memory
        numbers, _, _ = record.layout.parse(head, record.nbytes)
        return Received(record.layout, [*arrays.values()], numbers)

    def _bytes_received(self) -> int:
        return self._exchange.bytes_received

    def close(self) -> None:
        """Release the group of trainers."""
        self._epochs.clear()
        self._exchange.close()


def check_drawn_on_device(
    data: DistDataset, spec: PipelineSpec, device: str, is_packed: bool
) -> None:
    """Check that trainers can draw batches together on their devices.

    Raises:
        RuntimeError: khop cannot use the device. The message has the reason.
        ValueError: devices cannot draw these batches, or not all partitions.
    """
    try:
        check_device(device, "device")
    except RuntimeError as error:
        raise RuntimeError(f"{error}. {_REMEDY}") from None
    sampling, disk = spec.sampling, data.opened.disk
    refused = {
        "links and their negatives": spec.link is not None,
        f"{sampling.summary}, which asks the graph in Python": sampling.method.program is not None,
        f"{sampling.summary}, which draws layer by layer": sampling.method.layer_wise,
        "subgraph_type='induced'": sampling.subgraph_type == "induced",
        "packed rows": is_packed,
        "features_on_disk and structure_on_disk": disk is not None
        and bool(disk.names or disk.structure),
        "partitions that no trainer has loaded as its own": not set(range(data.num_partitions))
        <= set(data.homes),
    }
    for content, is_refused in refused.items():
        if is_refused:
            raise ValueError(
                "with exchange='all_to_all' and a device, the trainers' devices draw, but not "
                f"{content}. {_REMEDY}"
            )
