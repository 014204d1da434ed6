"""How a loader's sampling is carried out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from khop.data.device import parse_device
from khop.data.hot_rows import parse_bytes


def _check_common(rpc_timeout: float, use_all2all: bool) -> None:
    """Options that all ways of sampling share.

    GraphLearn-for-PyTorch's `master_addr`, `master_port` and `num_rpc_threads` are accepted and not
    needed: trainers find each other through torch.distributed's store.
    """
    if rpc_timeout <= 0:
        raise ValueError(f"rpc_timeout must be positive (got {rpc_timeout})")
    if use_all2all:
        raise NotImplementedError(
            "use_all2all: khop asks the owners of rows directly, which needs no equal batch "
            "counts; leave it False"
        )


@dataclass
class CollocatedDistSamplingWorkerOptions:
    """Sample in the trainer's own process, one batch at a time.

    Args:
        master_addr, master_port, num_rpc_threads: accepted, not needed.
        rpc_timeout: seconds that a request to another partition may take.
        use_all2all: not supported.
    """

    master_addr: str | None = None
    master_port: int | str | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = 180.0
    use_all2all: bool = False

    def __post_init__(self) -> None:
        _check_common(self.rpc_timeout, self.use_all2all)


@dataclass
class MpDistSamplingWorkerOptions:
    """Sample in processes of their own, batches travel through shared memory.

    Args:
        num_workers: sampler processes of this loader; 0 samples in the trainer's process.
        worker_devices: what samplers draw and gather on: 'cpu', 'cuda:0' or a `torch.device`, or a
            list of such, of which sampler i takes number i, beginning again after the last. By
            default the CPU; batches are the same. Where a device is the loader's `to_device`,
            batches are written to where the trainer reads them. The dataset says where graph and
            attributes lie (`DistDataset.load`). Of a folder of several partitions, hops need rows
            of all of them: samplers draw on the CPU then, which a warning says, and gather their
            own part's attributes on the device if it is also `to_device`. 'emulated' and
            'emulated:7' are for tests: they do on the CPU what a GPU would.
        worker_concurrency: batches that a sampler keeps in flight, and makes ahead of the trainer;
            1 to 32. Of small batches it makes up to 64 ahead.
        master_addr, master_port, num_rpc_threads: accepted, not needed.
        rpc_timeout: seconds that a request to another partition may take.
        channel_size: bytes of shared memory for all samplers together, '1GB' or a number; default:
            estimated from fan-outs and feature widths. Memory is taken when it is touched. Batches
            that find no room get memory of their own.
        pin_memory: register the shared memory with CUDA, once, where it is copied to a GPU or from
            one: copies then neither wait nor stop anything. All of it is taken at once.
        use_all2all: not supported.
        max_restarts: how often samplers that die are started again, in the life of the loader.
    """

    num_workers: int = 1
    worker_devices: Any = None
    worker_concurrency: int = 4
    master_addr: str | None = None
    master_port: int | str | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = 180.0
    channel_size: int | str | None = None
    pin_memory: bool = False
    use_all2all: bool = False
    max_restarts: int = 3

    def __post_init__(self) -> None:
        _check_common(self.rpc_timeout, self.use_all2all)
        if self.num_workers < 0:
            raise ValueError(f"num_workers must not be negative (got {self.num_workers})")
        self.worker_concurrency = min(max(self.worker_concurrency, 1), 32)
        if self.channel_size is not None:
            self.channel_size = parse_bytes(self.channel_size)
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts must not be negative (got {self.max_restarts})")
        if any(device is not None for device in self.devices()) and self.num_workers == 0:
            raise ValueError(
                "worker_devices are those of sampler processes: pass num_workers=1 or more (got 0)"
            )

    def devices(self) -> list[str | None]:
        """What each sampler works on: a device's full name, None for the CPU.

        Raises:
            ValueError: a name of no device.
        """
        given = self.worker_devices
        named = list(given) if isinstance(given, (list, tuple)) else [given]
        wanted = [_device_of(device) for device in named or [None]]
        return [wanted[i % len(wanted)] for i in range(max(self.num_workers, 1))]


def _device_of(device: Any) -> str | None:
    if device is None or str(device) == "cpu":
        return None
    try:
        kind, number = parse_device(device)
    except ValueError:
        raise ValueError(
            f"worker_devices must be 'cpu', 'cuda' or 'cuda:<index>', or a list of such (got "
            f"{device!r})"
        ) from None
    return f"{kind}:{number}"
