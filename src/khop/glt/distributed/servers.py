"""GLT's graph servers: khop's. With `is_dynamic=True`, they also wait for client 0 to leave.

Runs in the processes that start servers.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from khop import distributed as core
from khop.distributed.job.context import DistRole, leave
from khop.distributed.remote.addresses import Servers, address_of
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.launch import ServerContext
from khop.distributed.remote.messages import Table
from khop.distributed.rpc.key_files import read_server_keys
from khop.errors import RendezvousError
from khop.glt.distributed.dataset import DistDataset

# Seconds between two looks at the directory, and seconds that server 0 waits for other servers.
_LOOK, _OTHERS = 0.5, 10.0
_directory: Servers | None = None


def init_server(
    num_servers: int,
    server_rank: int,
    dataset: DistDataset,
    master_addr: str,
    master_port: int | str,
    *args: Any,
    key_file: str | Path | None = None,
    **kwargs: Any,
) -> ServerContext:
    """Start a graph server for a data set. Arguments: see `khop.distributed.init_server`.

    If the data set is made of arrays, its splits are served, too: clients' seeds can be a `Split`.

    Example:
        >>> dataset = DistDataset()
        >>> _ = dataset.load(folder, partition_idx=0)
        >>> context = init_server(1, 0, dataset, "127.0.0.1", port, num_clients=1)
        >>> context.num_clients()
        1
    """
    global _directory  # noqa: PLW0603
    if isinstance(dataset, DistDataset):
        dataset.serve_splits()
    job = num_servers, server_rank, dataset, master_addr, master_port
    context: ServerContext = core.init_server(*job, *args, key_file=key_file, **kwargs)
    master = address_of(master_addr, master_port)
    _directory = Servers.with_keys(master, read_server_keys(key_file))
    return context


def wait_and_shutdown_server() -> None:
    """Wait until all clients have left, which ends the server. Then leave the job.

    With `is_dynamic=True` clients come and go: wait until client 0 has joined, and then until
    client 0 and all other clients have left.

    Raises:
        RuntimeError: this process runs no server.
        PartitionUnavailableError: the server was killed, or failed.
    """
    context = core.get_context()
    if not isinstance(context, ServerContext) or context.num_clients():
        core.wait_and_shutdown_server()
        return
    assert _directory is not None
    try:
        watch = DirectoryClient(_directory)
        try:
            _wait_for_clients(context, watch)
        finally:
            watch.close()
    finally:
        leave(DistRole.SERVER)


def _wait_for_clients(context: ServerContext, watch: DirectoryClient) -> None:
    """Wait until client 0 has joined and all clients have left, or the server has ended."""
    has_come = False

    def have_left(table: Table) -> bool:
        nonlocal has_come  # the directory forgets clients that left long ago
        has_come |= 0 in table.clients
        return has_come and all(client.gone for client in table.clients.values())

    while not context.process.has_ended:
        with contextlib.suppress(RendezvousError):
            watch.wait_for_table(have_left, "the clients to leave", _LOOK)
            break
    else:
        context.wait()  # raises the error that ended it
        return
    if context.rank == 0:
        # The directory ends with this server, and other servers still read it.
        until = time.monotonic() + _OTHERS
        while time.monotonic() < until and watch.table is not None and len(watch.table.servers) > 1:
            time.sleep(_LOOK)
