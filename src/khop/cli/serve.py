"""`khop serve`: a graph server as a separate process. Imports no torch."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Mapping
from typing import Any

from khop.cli.arguments import byte_size, find_modules_here
from khop.typing import Array


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="the partition folder")
    parser.add_argument("--rank", type=int, default=0, help="which of the servers (default 0)")
    parser.add_argument("--num-servers", type=int, default=1, metavar="N")
    parser.add_argument(
        "--num-clients",
        type=int,
        default=0,
        metavar="M",
        help="end when so many clients have come and gone (default 0: serve until stopped)",
    )
    parser.add_argument(
        "--master",
        required=True,
        metavar="HOST:PORT",
        help="address of server 0, the same for all servers and clients",
    )
    parser.add_argument(
        "--part",
        type=int,
        action="append",
        metavar="P",
        help="a partition to serve, once for each (default: every N-th, from the rank on)",
    )
    parser.add_argument(
        "--host", help="address to listen at (default: that on the way to server 0)"
    )
    parser.add_argument("--port", type=int, help="port to listen at (default: a free one)")
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument(
        "--key-file",
        metavar="FILE",
        help="server.key as `khop keygen` wrote it (default: $KHOP_KEY_FILE)",
    )
    keys.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond loopback without keys: anybody may connect and read",
    )
    parser.add_argument(
        "--labels",
        action="append",
        default=[],
        metavar="[TYPE=]FILE.npy",
        help="labels by original id that the folder does not hold; batches carry them as y",
    )
    parser.add_argument(
        "--buffer-limit",
        type=byte_size,
        default=8 << 30,
        metavar="SIZE",
        help="memory for batches that clients have not read, all together (default 8GiB)",
    )
    parser.add_argument(
        "--lease",
        type=float,
        metavar="SECONDS",
        help="silence after which a client counts as lost (default: $KHOP_LEASE, or 30)",
    )
    parser.add_argument(
        "--methods",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module of sampling methods of your own that clients may use (my_package.methods), "
        "also looked for in the working directory; or the name of an installed package's; once for "
        "each",
    )
    parser.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="serve counters as Prometheus text there"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM, Ctrl-C, or the last client has left."""
    # Imported here: `khop --help` needs none of it.
    from khop.channel.control import ControlLine, socket_pair
    from khop.distributed.membership.leases import lease_seconds
    from khop.distributed.processes.child import explain_crashes
    from khop.distributed.remote.server.main import serve
    from khop.distributed.rpc.key_files import key_file_path, read_server_keys
    from khop.log import configure_program, identify

    configure_program("info")
    explain_crashes(arguments.folder)
    identify("server", arguments.rank)
    keys = None if arguments.insecure else read_server_keys(arguments.key_file)
    find_modules_here(arguments.methods)
    ours, theirs = socket_pair()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ours.close())
    config = {
        "root": arguments.folder,
        "rank": arguments.rank,
        "num_servers": arguments.num_servers,
        "num_clients": arguments.num_clients,
        "parts": arguments.part,
        "master": arguments.master,
        "host": arguments.host,
        "port": arguments.port,
        "keys": None if keys is None else keys.to_json(),
        "key_file": key_file_path(arguments.key_file),
        "insecure": arguments.insecure,
        "buffer_limit": arguments.buffer_limit,
        "lease": lease_seconds(arguments.lease),
        "metrics_port": arguments.metrics_port,
        "methods": arguments.methods,
    }
    with ours, theirs:
        serve(config, read_labels(arguments.folder, arguments.labels), ControlLine(theirs), _say)
    return 0


def _say(addresses: Mapping[str, str]) -> None:
    print(f"serving at {addresses['tcp']}", flush=True)


def read_labels(folder: str, given: list[str]) -> dict[int, Array]:
    """Read labels of node types, by index, from 'FILE' or 'TYPE=FILE'.

    Raises:
        ValueError: a type is missing or unknown, or a file holds no array.
    """
    from khop.data.files import load_npy
    from khop.storage.folder import PartitionFolder

    found: dict[int, Any] = {}
    names = [t.name for t in PartitionFolder(folder).meta.node_types] if given else []
    for entry in given:
        node_type, separator, path = entry.rpartition("=")
        if not separator and len(names) > 1:
            raise ValueError(f"--labels {entry}: the graph has node types {names}: write TYPE=FILE")
        if separator and node_type not in names:
            raise ValueError(f"--labels {entry}: no node type '{node_type}': there are {names}")
        place = names.index(node_type) if separator else 0
        found[place] = load_npy(path, "r")
    return found
