"""GLT's worker options: khop's options in GLT's order. Some of GLT's arguments have no effect.

Trainers find each other through torch.distributed's store, and loaders do not share samplers. A
trainer that is in no group yet joins its group at `master_addr` and `master_port`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from khop.distributed import options


def _without_samplers(use_all2all: bool, samplers: str | None) -> bool:
    """Return `use_all2all`, but False with a warning if there are `samplers`, by name."""
    if use_all2all and samplers is not None:
        warnings.warn(
            f"use_all2all=True: {samplers} get rows of other partitions by messages, which gives "
            "the same batches. Loaders with CollocatedDistSamplingWorkerOptions, or with "
            "num_workers=0, exchange them by torch.distributed.all_to_all_single",
            stacklevel=3,
        )
    return use_all2all and samplers is None


class CollocatedDistSamplingWorkerOptions(options.CollocatedDistSamplingWorkerOptions):
    """`khop.distributed.CollocatedDistSamplingWorkerOptions` with GLT's arguments.

    Args:
        master_addr, master_port: address to join the trainers' group, if not joined yet.
        num_rpc_threads: accepted, not needed.
        rpc_timeout: seconds, khop's `timeout`.
        use_all2all: exchange neighbours and rows between trainers by collective calls, khop's
            `exchange='all_to_all'`.
    """

    def __init__(
        self,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180.0,
        use_all2all: bool = False,
    ) -> None:
        self.use_all2all = use_all2all
        self.master_addr, self.master_port = master_addr, master_port
        super().__init__(timeout=rpc_timeout)


class MpDistSamplingWorkerOptions(options.MpDistSamplingWorkerOptions):
    """`khop.distributed.MpDistSamplingWorkerOptions` with GLT's arguments.

    Args:
        num_workers: sampler processes of the loader. 0 samples in the trainer's process.
        worker_devices: device or devices on which they draw, as 'cuda:0'. If None, the CPU.
        worker_concurrency: batches that a sampler makes ahead, 1 to 32.
        master_addr, master_port: address to join the trainers' group, if not joined yet.
        num_rpc_threads: accepted, not needed.
        rpc_timeout: seconds that a request to another partition may take.
        channel_size: bytes of shared memory for batches, or '1GB'. If None, estimated.
        pin_memory: make copies to a GPU asynchronous.
        use_all2all: as for `CollocatedDistSamplingWorkerOptions` with `num_workers=0`. Samplers
            exchange by messages, with a warning.
        **more: khop's further options.
    """

    def __init__(
        self,
        num_workers: int = 1,
        worker_devices: Any = None,
        worker_concurrency: int = 4,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180.0,
        channel_size: int | str | None = None,
        pin_memory: bool = False,
        use_all2all: bool = False,
        **more: Any,
    ) -> None:
        samplers = "sampler processes" if num_workers > 0 else None
        self.use_all2all = _without_samplers(use_all2all, samplers)
        self.master_addr, self.master_port = master_addr, master_port
        super().__init__(
            num_workers,
            worker_devices,
            worker_concurrency,
            timeout=rpc_timeout,
            buffer_size=channel_size,
            pin_memory=pin_memory,
            **more,
        )


class RemoteDistSamplingWorkerOptions(options.RemoteDistSamplingWorkerOptions):
    """`khop.distributed.RemoteDistSamplingWorkerOptions` with GLT's arguments.

    Args:
        server_rank: rank or ranks of the servers that make batches. If None, by the client's rank.
        num_workers, worker_devices: sampler processes per server, and devices on which they draw.
        worker_concurrency: batches that a sampler makes ahead, 1 to 32.
        rpc_timeout: seconds until a server that does not answer is an error.
        buffer_size: bytes of memory per server for batches, or '1GB'. If None, estimated.
        prefetch_size: least number of batches requested ahead.
        num_rpc_threads: accepted, not needed.
        use_all2all: accepted with a warning: graph servers exchange by messages.
        master_addr, master_port, worker_key, glt_graph, workload_type: accepted, not needed.
        **more: khop's further options.
    """

    def __init__(
        self,
        server_rank: int | Sequence[int] | None = None,
        num_workers: int = 1,
        worker_devices: Any = None,
        worker_concurrency: int = 4,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180.0,
        buffer_size: int | str | None = None,
        prefetch_size: int = 4,
        worker_key: str | None = None,
        glt_graph: object = None,
        workload_type: object = None,
        use_all2all: bool = False,
        **more: Any,
    ) -> None:
        _without_samplers(use_all2all, "graph servers")
        super().__init__(
            server_rank,
            num_workers,
            worker_devices,
            worker_concurrency,
            timeout=more.pop("timeout", rpc_timeout),
            buffer_size=buffer_size,
            prefetch_size=prefetch_size,
            **more,
        )
