"""`khop serve`: a graph server as a separate process. Imports no torch."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Mapping
from types import FrameType

from khop.cli.arguments import Arguments, byte_size, find_modules_here
from khop.typing import Array


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop serve` to its parser."""
    own = Arguments(parser)
    own.word("folder", "FOLDER", "the partition folder")
    own.value("--rank", None, "which of the servers (default 0)", int, default=0)
    own.value("--num-servers", "N", None, int, default=1)
    own.value(
        "--num-clients",
        "M",
        "end when so many clients have come and gone (default 0: serve until stopped)",
        int,
        default=0,
    )
    own.value(
        "--master",
        "HOST:PORT",
        "address of server 0, the same for all servers and clients",
        required=True,
    )
    own.values(
        "--part",
        "P",
        "a partition to serve, once for each (default: every N-th, from the rank on)",
        int,
    )
    own.value("--host", None, "address to listen at (default: that on the way to server 0)")
    own.value("--port", None, "port to listen at (default: a free one)", int)
    own.values(
        "--labels",
        "[TYPE=]FILE.npy",
        "labels by original id that the folder does not hold; batches carry them as y",
    )
    own.value(
        "--buffer-limit",
        "SIZE",
        "memory for batches that clients have not read, all together (default 8GiB)",
        byte_size,
        default=8 << 30,
    )
    own.value(
        "--cache-limit",
        "SIZE",
        "memory for rows of other partitions that samplers keep, all together (default 4GiB)",
        byte_size,
        default=4 << 30,
    )
    own.value(
        "--tensor-limit",
        "SIZE",
        "memory for tensors of clients' GraphStores, all together (default 8GiB)",
        byte_size,
        default=8 << 30,
    )
    own.value(
        "--job-tensor-limit",
        "SIZE",
        "memory for tensors of one job (default: that for all)",
        byte_size,
    )
    own.value(
        "--lease",
        "SECONDS",
        "silence after which a client counts as lost (default: $KHOP_LEASE, or 30)",
        float,
    )
    own.values(
        "--methods",
        "MODULE",
        "a module of sampling methods of your own that clients may use (my_package.methods), also "
        "looked for in the working directory; or the name of an installed package's; once for each",
    )
    own.value("--metrics-port", "PORT", "serve counters as Prometheus text there", int)
    keys = Arguments(parser.add_mutually_exclusive_group())
    keys.value(
        "--key-file", "FILE", "server.key as `khop keygen` wrote it (default: $KHOP_KEY_FILE)"
    )
    keys.flag("--insecure", "listen beyond loopback without keys: anybody may connect and read")


def run(arguments: argparse.Namespace) -> int:
    """Run a graph server until SIGTERM, Ctrl-C, or the last client has left."""
    # Imported here: `khop --help` needs none of it.
    from khop.channel.control import ControlLine, socket_pair
    from khop.distributed.membership.leases import lease_seconds
    from khop.distributed.processes.child import explain_crashes
    from khop.distributed.remote.server.main import serve
    from khop.distributed.remote.server.server_config import ServerConfig
    from khop.distributed.rpc.key_files import key_file_path, read_server_keys
    from khop.launcher.ending import VARIABLE
    from khop.log import configure_program, identify

    configure_program("info")
    explain_crashes(arguments.folder)
    identify("server", arguments.rank)
    keys = None if arguments.insecure else read_server_keys(arguments.key_file)
    find_modules_here(arguments.methods)
    controller, controlled = socket_pair()
    stopped: list[int] = []

    def stop(signal_number: int, _: FrameType | None) -> None:
        stopped.append(signal_number)
        controller.close()

    for ends in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ends, stop)
    config = ServerConfig(
        root=arguments.folder,
        rank=arguments.rank,
        num_servers=arguments.num_servers,
        num_clients=arguments.num_clients,
        parts=arguments.part or None,
        master=arguments.master,
        host=arguments.host,
        port=arguments.port,
        keys=None if keys is None else keys.to_json(),
        key_file=key_file_path(arguments.key_file),
        insecure=arguments.insecure,
        buffer_limit=arguments.buffer_limit,
        cache_limit=arguments.cache_limit,
        tensor_limit=arguments.tensor_limit,
        job_tensor_limit=arguments.job_tensor_limit,
        lease=lease_seconds(arguments.lease),
        metrics_port=arguments.metrics_port,
        methods=arguments.methods,
    )

    def on_ready(addresses: Mapping[str, str]) -> None:
        print(f"serving at {addresses['tcp']}", flush=True)

    with controller, controlled:
        labels = read_labels(arguments.folder, arguments.labels)
        serve(config, labels, ControlLine(controlled), on_ready)
    # In a job of khop run, clients would wait for this server: the job must end.
    return 128 + stopped[0] if stopped and VARIABLE in os.environ else 0


def read_labels(folder: str, entries: list[str]) -> dict[int, Array]:
    """Read labels of nodes from files.

    Args:
        folder: the partition folder.
        entries: 'FILE', or 'TYPE=FILE' if there are several node types.

    Returns:
        {index of the node type: labels}.

    Raises:
        ValueError: a type is missing or unknown, or a file holds no array.
    """
    from khop.data.files import load_npy
    from khop.storage.folder import PartitionFolder

    labels: dict[int, Array] = {}
    names = [t.name for t in PartitionFolder(folder).meta.node_types] if entries else []
    for entry in entries:
        node_type, separator, path = entry.rpartition("=")
        if not separator and len(names) > 1:
            raise ValueError(f"--labels {entry}: the graph has node types {names}: write TYPE=FILE")
        if separator and node_type not in names:
            raise ValueError(f"--labels {entry}: no node type '{node_type}': there are {names}")
        labels[names.index(node_type) if separator else 0] = load_npy(path, "r")
    return labels
