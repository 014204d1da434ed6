"""Backend of loaders without sampler processes: the trainer draws each batch. Runs in trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from khop.channel.layout import Received, Record
from khop.channel.pool import BufferPool
from khop.data.direct_reads import DiskCounts
from khop.data.steps import run
from khop.data.waiter import TIMEOUT
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.sampling.control_messages import Epoch
from khop.distributed.sampling.pipeline import Pipeline, PipelineSpec
from khop.distributed.sampling.process_handle import Worker
from khop.sampler.plan import EpochPlan
from khop.storage.part import Part
from khop.trace.clock import Phase
from khop.trace.recording import OwnRecords
from khop.typing import Array, Int64Array

_UINT8 = np.dtype(np.uint8)


class InProcessBackend:
    """Backend that makes batches in the trainer's process.

    Args:
        part: the home part.
        spec: specification of the batches.
        client: client of the other partitions. If None, there are none.
        weights: sampling weights of negative endpoints, by name: see `arrays` of `Pipeline`.
        timeout: seconds that a read of a row store may take.
    """

    num_samplers = 0
    num_restarts = 0
    workers: Sequence[Worker] = ()

    def __init__(
        self,
        part: Part,
        spec: PipelineSpec,
        client: PartitionClient | None,
        weights: Mapping[str, Array],
        timeout: float = TIMEOUT,
    ) -> None:
        self._client = client
        self._part, self._reported_disk = part, DiskCounts()
        self._timeout = timeout
        self._records = OwnRecords()
        self._pipeline = Pipeline(part, spec, client, weights, self._records.clock)
        self._pool = BufferPool()
        self._epochs: dict[int, Epoch] = {}
        self._num_epochs = 0
        self._is_making = False

    def new_epoch(self) -> int:
        """Return the id of the next epoch."""
        epoch_id = self._num_epochs
        self._num_epochs += 1
        return epoch_id

    def open_epoch(
        self, epoch_id: int, run_key: int, plan: EpochPlan, columns: Int64Array, first: int = 0
    ) -> None:
        """Begin an epoch. See `SamplerPool.open_epoch` for the arguments."""
        del first  # each batch is made on request
        self._epochs[epoch_id] = Epoch(run_key, plan, columns)

    def close_epoch(self, epoch_id: int) -> None:
        """End an epoch."""
        self._epochs.pop(epoch_id, None)

    def has_arrived(self, epoch_id: int, batch: int) -> bool:
        """Return False: batches are made on request only."""
        del epoch_id, batch
        return False

    def take(self, epoch_id: int, batch: int) -> Received:
        """Make a batch."""
        epoch = self._epochs[epoch_id]
        if self._is_making and self._client is not None:  # an exception ended the last call
            self._client.start_again()
        self._is_making = True
        memory: list[Array] = []

        def allocate(record: Record) -> Mapping[str, Array]:
            memory.append(self._pool.empty((record.nbytes,), _UINT8))
            return record.write(memory[0].data)

        records, client = self._records, self._client
        records.begin((epoch_id, batch))
        bytes_before = 0
        if client is not None:
            client.log, bytes_before = records.log, client.bytes_received
        try:
            steps = self._pipeline.make(epoch.seeds_of(batch), *epoch.key_of(batch), allocate)
            record: Record = run(steps, client, self._timeout, records.clock, Phase.REMOTE)
        finally:
            records.end()
        remote = 0 if client is None else client.bytes_received - bytes_before
        self._is_making = False
        disk = self._part.disk_counts()
        read, self._reported_disk = disk.since(self._reported_disk), disk
        record.note("made", records.clock.made(len(memory[0]), remote, disk=read))
        return record.layout.read(memory[0])._replace(extras=record.extras or None)

    def close(self) -> None:
        """Close the connections to other partitions."""
        self._epochs.clear()
        if self._client is not None:
            self._client.close()
            self._client = None
