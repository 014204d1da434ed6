"""The program of a trainer process: loads, prints what it loaded, and ends on request.

    python -m soak.trainer CONFIG      CONFIG is a `TrainerConfig` as JSON

It writes a line for each event to its standard output: `b <checksum>` for a batch, `e` at the end
of an epoch, and ends after the epoch in which its standard input closes.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from soak.workload import Workload, checksum

_PLENTY = 1_000_000  # of restarts


@dataclass(frozen=True)
class TrainerConfig:
    """Configuration of a trainer.

    Attributes:
        mode: 'worker', or 'client' of graph servers.
        workload: the `Workload` as a dictionary.
        folder: the partition folder (worker mode).
        rank: rank of the trainer or client, and its partition (worker mode).
        stream: number of the stream that the seeds and random numbers of its batches come from.
        num_samplers: sampler processes of a loader.
        timeout: timeout of requests, in seconds.
        num_servers: number of graph servers.
        master: address and port of the first graph server.
        key_file: keys of a client. If None, the servers are local.
    """

    mode: str
    workload: dict[str, Any]
    folder: str
    rank: int
    stream: int
    num_samplers: int = 2
    timeout: float = 120.0
    num_servers: int = 0
    master: tuple[str, int] = ("127.0.0.1", 0)
    key_file: str | None = None

    def to_json(self) -> str:
        """Return the configuration as JSON, for the command line."""
        return json.dumps(asdict(self))


def main() -> None:
    """Run until standard input closes."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    config = TrainerConfig(**json.loads(sys.argv[1]))
    stop = threading.Event()
    threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    make_loader = {"worker": _worker, "client": _client}[config.mode](config)
    num_epochs = Workload(**config.workload).num_epochs
    while not stop.is_set():
        loader = make_loader()
        for _ in range(num_epochs):
            for batch in loader:
                _print(f"b {checksum(batch)}")
            _print("e")
            if stop.is_set():
                break
        loader.shutdown()
    if config.mode == "client":
        from khop.distributed import shutdown_client

        shutdown_client()


def _stop_at_end_of_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _worker(config: TrainerConfig) -> Callable[[], Any]:
    from khop.distributed import (
        DistDataset,
        DistNeighborLoader,
        MpDistSamplingWorkerOptions,
        init_worker_group,
    )

    init_worker_group()
    data = DistDataset().load(config.folder, config.rank, same_host_reads=False)
    options = MpDistSamplingWorkerOptions(
        num_workers=config.num_samplers, timeout=config.timeout, max_restarts=_PLENTY
    )
    return lambda: DistNeighborLoader(data, worker_options=options, **_common(config))


def _client(config: TrainerConfig) -> Callable[[], Any]:
    from khop.distributed import (
        DistNeighborLoader,
        RemoteDistSamplingWorkerOptions,
        init_client,
    )

    # 0: any number of clients.
    init_client(config.num_servers, 0, config.rank, *config.master, key_file=config.key_file)
    options = RemoteDistSamplingWorkerOptions(
        server_rank=list(range(config.num_servers)),
        num_workers=config.num_samplers,
        timeout=config.timeout,
        max_restarts=_PLENTY,
    )
    return lambda: DistNeighborLoader(None, worker_options=options, **_common(config))


def _common(config: TrainerConfig) -> dict[str, Any]:
    workload = Workload(**config.workload)
    return {
        **workload.options(config.stream),
        "with_edge": True,
        "collect_features": True,
        "even_batches": False,  # trainers make new loaders at different times
    }


if __name__ == "__main__":
    main()
