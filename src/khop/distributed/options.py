"""Worker options of loaders: the processes and devices that sample. Used in trainers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from khop.data.device import full_name
from khop.data.hot_rows import parse_bytes
from khop.renames import accepts_old_names

if TYPE_CHECKING:
    import torch


def _check_timeout(timeout: float) -> None:
    if timeout <= 0:
        raise ValueError(f"timeout must be positive (got {timeout})")


@accepts_old_names
@dataclass
class CollocatedDistSamplingWorkerOptions:
    """Options for sampling in the trainer's process, one batch at a time.

    Args:
        timeout: seconds that a request to another partition may take.

    Raises:
        ValueError: a timeout that is not positive.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> options = CollocatedDistSamplingWorkerOptions(timeout=60)
        >>> loader = DistNeighborLoader(dataset, [2], batch_size=3, worker_options=options)
        >>> len(list(loader))
        2
    """

    timeout: float = 180.0

    def __post_init__(self) -> None:
        _check_timeout(self.timeout)


@accepts_old_names
@dataclass
class MpDistSamplingWorkerOptions:
    """Options for sampling in separate processes. Batches go through shared memory.

    Args:
        num_workers: sampler processes of this loader. 0 samples in the trainer's process.
        worker_devices: devices on which samplers draw and gather: 'cpu', 'cuda:0' or a
            `torch.device`, or a list of devices, assigned to samplers round-robin. If None, the
            CPU. Batches are the same on all. 'cuda' is torch's current GPU when the loader is made.
            One sampler per GPU is enough (docs/devices.md). If a device is the loader's `device`,
            samplers write batches where the trainer reads them. `DistDataset.load` sets the
            placement of graph and attributes. With several partitions, hops need rows of all of
            them: samplers then draw on the CPU, with a warning. They gather their own part's
            attributes on the device if it is also the loader's `device`. 'emulated' and
            'emulated:7' are for tests: devices emulated on the CPU.
        worker_concurrency: batches, 1 to 32, that a sampler keeps in flight and makes ahead of the
            trainer. It makes up to 64 small batches ahead.
        timeout: seconds that a request to another partition may take.
        buffer_size: bytes of shared memory for all samplers together, '1GB' or a number. If None,
            estimated from fan-outs and feature widths. Memory is allocated at its first use.
            Batches that do not fit get separate memory.
        pin_memory: if the loader's `device` is a GPU, register the shared memory with CUDA, so that
            copies to the GPU are asynchronous. All of that memory is allocated at the start.
            Otherwise return batches in torch's page-locked memory, as PyTorch's loaders do, for
            `batch.to('cuda', non_blocking=True)`, at the cost of a copy of each batch. Samplers on
            a GPU other than the loader's `device` lock the host memory that they copy batches to.
        max_restarts: number of restarts of dead samplers, over the life of the loader.
        standby: keep a process in reserve (some 30 MB) that replaces a dead sampler without
            start-up time. Batches of a dead sampler go to the others first, so this is for loaders
            with one sampler.

    Raises:
        ValueError: a number below 0, a size that cannot be read, or devices without samplers.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> options = MpDistSamplingWorkerOptions(num_workers=1, buffer_size="1MB")
        >>> loader = DistNeighborLoader(dataset, [2], batch_size=3, worker_options=options)
        >>> len(list(loader))
        2
    """

    num_workers: int = 1
    worker_devices: str | torch.device | Sequence[str | torch.device] | None = None
    worker_concurrency: int = 4
    timeout: float = 180.0
    buffer_size: int | str | None = None
    pin_memory: bool = False
    max_restarts: int = 3
    standby: bool = False

    def __post_init__(self) -> None:
        _check_timeout(self.timeout)
        if self.num_workers < 0:
            raise ValueError(f"num_workers must not be negative (got {self.num_workers})")
        self.worker_concurrency = min(max(self.worker_concurrency, 1), 32)
        if self.buffer_size is not None:
            self.buffer_size = parse_bytes(self.buffer_size)
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts must not be negative (got {self.max_restarts})")
        # 'cuda' is resolved when a loader is made.
        names = _devices_of(self.worker_devices, self.num_workers, default_gpu=0)
        if any(name is not None for name in names) and self.num_workers == 0:
            raise ValueError(
                "worker_devices are those of sampler processes: pass num_workers=1 or more (got 0)"
            )

    def devices(self) -> list[str | None]:
        """Return the device of each sampler: a full name such as 'cuda:0', or None for the CPU.

        'cuda' is torch's current GPU in this thread.

        Raises:
            ValueError: a name of no device.
        """
        return _devices_of(self.worker_devices, self.num_workers)


@accepts_old_names
@dataclass
class RemoteDistSamplingWorkerOptions:
    """Options for sampling on graph servers, for loaders of clients (`init_client`, `data=None`).

    Args:
        server_rank: rank of the server whose sampler processes make this loader's batches, or a
            list of ranks. The least busy server of the list gets the next batch. While a server is
            unreachable, the other servers get its batches. With one list of seeds per server, each
            server makes only the batches of its list. If None, the client's rank modulo the number
            of servers.
        num_workers: sampler processes of this loader on each of its servers.
        worker_devices: devices on which they draw and gather: a device of the server's machine, or
            a list of devices, assigned to samplers round-robin. 'cuda' is that machine's first GPU.
            If None, the CPU.
        worker_concurrency: batches that a sampler keeps in flight, 1 to 32.
        timeout: seconds that a server may be unreachable, or take for a batch, until
            PartitionUnavailableError is raised.
        buffer_size: bytes of shared memory on each server for this loader's batches, '1GB' or a
            number. If None, estimated from fan-outs and feature widths. It is allocated at its
            first use, and bounds a server's memory for a client that stops reading.
        prefetch_size: minimum number of batches requested ahead of the trainer. The number is also
            at least `num_workers` times `worker_concurrency`, and up to 64 for small batches.
        max_restarts: number of restarts of the process that receives batches, if it dies.
        shared_memory: let samplers write into this process's memory, as in worker mode, if all of
            the loader's servers are on this machine, under the same user. Nothing is sent, and
            batches are the same. Each of the `num_workers` sampler processes per server makes
            batches ahead, and `buffer_size` bounds all of them together.
        pin_memory: as in `MpDistSamplingWorkerOptions`.
        batch_limit: maximum bytes of a batch from a server, '1GB' or a number. A larger batch fails
            before memory is taken. If None, all batches in flight together may take a quarter of
            the memory, and each may take at least 1 GiB.

    Raises:
        TypeError, ValueError: numbers that are too small or no integers, a size that cannot be
            read, or a server that is named twice.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> options = RemoteDistSamplingWorkerOptions(server_rank=0, num_workers=1)
        >>> loader = DistNeighborLoader(None, [2], batch_size=3, worker_options=options)
        >>> len(list(loader))
        2
    """

    server_rank: int | Sequence[int] | None = None
    num_workers: int = 1
    worker_devices: str | torch.device | Sequence[str | torch.device] | None = None
    worker_concurrency: int = 4
    timeout: float = 180.0
    buffer_size: int | str | None = None
    prefetch_size: int = 4
    max_restarts: int = 3
    shared_memory: bool = True
    pin_memory: bool = False
    batch_limit: int | str | None = None

    def __post_init__(self) -> None:
        _check_timeout(self.timeout)
        for name, low in (("num_workers", 1), ("prefetch_size", 1), ("max_restarts", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer (got {value!r})")
            if value < low:
                raise ValueError(f"{name} must be at least {low} (got {value})")
        self.worker_concurrency = min(max(self.worker_concurrency, 1), 32)
        if self.buffer_size is not None:
            self.buffer_size = parse_bytes(self.buffer_size)
        if self.batch_limit is not None:
            self.batch_limit = parse_bytes(self.batch_limit)
            if self.batch_limit < 1:
                raise ValueError(f"batch_limit must be at least 1 byte (got {self.batch_limit})")

    @property
    def has_server_list(self) -> bool:
        """True if `server_rank` is a list. The seeds may then be one list per server."""
        return isinstance(self.server_rank, Sequence)

    def servers(self, client_rank: int, num_servers: int) -> list[int]:
        """Return the ranks of the servers that make batches.

        Args:
            client_rank: the client's rank.
            num_servers: number of servers.

        Raises:
            TypeError: ranks are not integers.
            ValueError: a rank does not exist or occurs twice, or there is none.
        """
        if self.server_rank is None:
            return [client_rank % num_servers]
        named = self.server_rank
        ranks = list(named) if isinstance(named, Sequence) else [named]
        for rank in ranks:
            if isinstance(rank, bool) or not isinstance(rank, int):
                raise TypeError(
                    f"server_rank must be an integer or a list of integers (got {named!r})"
                )
            if not 0 <= rank < num_servers:
                raise ValueError(
                    f"server_rank {rank} is not one of {num_servers} servers (0 to "
                    f"{num_servers - 1})"
                )
        if not ranks or len(set(ranks)) < len(ranks):
            raise ValueError(f"server_rank must name servers, each once (got {named!r})")
        return ranks

    def devices(self) -> list[str | None]:
        """Return the device of each sampler: a full name such as 'cuda:0', or None for the CPU.

        'cuda' is the first GPU: torch's current GPU has no meaning on the server's machine.

        Raises:
            ValueError: a name of no device.
        """
        return _devices_of(self.worker_devices, self.num_workers, default_gpu=0)


def _devices_of(
    devices: str | torch.device | Sequence[str | torch.device] | None,
    num_workers: int,
    default_gpu: int | None = None,
) -> list[str | None]:
    listed = list(devices) if isinstance(devices, (list, tuple)) else [devices]
    names = [_device_of(device, default_gpu) for device in listed or [None]]
    return [names[i % len(names)] for i in range(max(num_workers, 1))]


def _device_of(device: object, default_gpu: int | None) -> str | None:
    if device is None or str(device) == "cpu":
        return None
    try:
        return full_name(device, default_gpu)
    except ValueError:
        raise ValueError(
            f"worker_devices must be 'cpu', 'cuda' or 'cuda:<index>', or a list of these (got "
            f"{device!r})"
        ) from None


WorkerOptions: TypeAlias = (
    MpDistSamplingWorkerOptions
    | CollocatedDistSamplingWorkerOptions
    | RemoteDistSamplingWorkerOptions
)
"""Worker options of a loader: the processes and devices that sample."""


def check_lists(lists: Sequence[object], options: WorkerOptions | None, name: str) -> None:
    """Raise ValueError unless `options` name one server per list of seeds in argument `name`."""
    servers = options.server_rank if isinstance(options, RemoteDistSamplingWorkerOptions) else None
    if not isinstance(servers, (list, tuple)) or len(servers) != len(lists):
        raise ValueError(
            f"{name} is a list of {len(lists)} lists, which are for as many graph servers: pass "
            "RemoteDistSamplingWorkerOptions(server_rank=[...]) with a server for each of them "
            f"(got server_rank={servers})"
        )
