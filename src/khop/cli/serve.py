"""`khop serve`: a graph server as a separate process. Imports no torch."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Mapping
from types import FrameType

from khop.cli.arguments import chosen, declare, find_modules_here
from khop.typing import Array

_TABLE = """\
folder FOLDER           the partition folder
--rank RANK             which of the servers (default 0)
--num-servers N
--num-clients M         end when so many clients have come and gone (default 0: serve until stopped)
--master HOST:PORT !    address of server 0, the same for all servers and clients
--part P *              a partition to serve, once for each (default: every N-th, from the rank on)
--host HOST             address to listen at (default: that on the way to server 0)
--port PORT             port to listen at (default: a free one)
--labels [TYPE=]FILE.npy *
                        labels by original id that the folder does not hold; batches carry them as y
--buffer-limit SIZE     memory for batches that clients have not read, all together (default 8GiB)
--cache-limit SIZE      memory for rows of other partitions that samplers keep, all together
                        (default 4GiB)
--tensor-limit SIZE     memory for tensors of clients' GraphStores, all together (default 8GiB)
--job-tensor-limit SIZE
                        memory for tensors of one job (default: that for all)
--lease SECONDS         silence after which a client counts as lost (default: $KHOP_LEASE, or 30)
--methods MODULE *      a module of sampling methods of your own that clients may use
                        (my_package.methods), also looked for in the working directory; or the name
                        of an installed package's; once for each
--metrics-port PORT     serve counters as Prometheus text there
"""
_KEYS = """\
--key-file FILE         server.key as `khop keygen` wrote it (default: $KHOP_KEY_FILE)
--insecure              listen beyond loopback without keys: anybody may connect and read
"""
# Arguments with the names of fields of `ServerConfig`.
_AS_THEY_ARE = (
    *("rank", "num_servers", "num_clients", "master", "host", "port", "insecure", "buffer_limit"),
    *("cache_limit", "tensor_limit", "job_tensor_limit", "metrics_port", "methods"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop serve` to its parser."""
    limits = {"buffer_limit": 8 << 30, "cache_limit": 4 << 30, "tensor_limit": 8 << 30}
    declare(parser, _TABLE, rank=0, num_servers=1, num_clients=0, **limits)
    declare(parser.add_mutually_exclusive_group(), _KEYS)


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
        parts=arguments.part or None,
        keys=None if keys is None else keys.to_json(),
        key_file=key_file_path(arguments.key_file),
        lease=lease_seconds(arguments.lease),
        **chosen(arguments, *_AS_THEY_ARE),
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
