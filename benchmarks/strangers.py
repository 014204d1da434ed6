"""Resources of a graph server that machines without keys can use, and the effect on its members.

    python benchmarks/strangers.py [--idle 10000] [--huge 12] [--megabytes 250] [--seconds 12]

The program starts `khop serve` with keys on loopback. A member requests rows over TCP all the time.
Strangers then run these attacks, which need no key, one after the other::

    idle        --idle connections that send nothing
    stalled     --idle connections that send a CURVE greeting and no more
    full        --idle connections that greet, and send all but the end of a first command
    handshakes  --huge connections that greet, and send a first command of --megabytes

If the server closes a connection, the stranger opens a new one. The program prints these figures
per attack:

- the server's resident memory and descriptors before, at most, and after
- the member's rate before and during the attack
- the wait of a new member for its first reply during the attack

The program checks no figure. `--descriptors` limits the descriptors of the server, as `ulimit -n`
does. Strangers run in separate processes, and need one descriptor per connection. Raise `ulimit -n`
for them. Read the member's rates as ratios, because strangers also use processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.key_files import read_client_keys, write_keys
from khop.distributed.rpc.keys import ClientKeys
from khop.distributed.rpc.partition_client import PartitionClient
from khop.partition import RandomPartitioner

ATTACKS = ("idle", "stalled", "full", "handshakes")
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(15) + bytes(32)
_NODES, _ROWS = 20_000, 1000
_FRAME = 1 << 20
_PIECE = bytes(1 << 18)


# Strangers ----------------------------------------------------------------------------------------


def keep_open(address: tuple[str, int], count: int, words: bytes, end: float) -> None:
    """Keep `count` connections open that send `words` and no more."""
    poller, connections = select.epoll(), dict[int, socket.socket]()
    unsent: dict[int, memoryview] = {}
    while time.monotonic() < end:
        for _ in range(min(500, count - len(connections))):
            fresh = socket.socket()
            fresh.setblocking(False)
            fresh.connect_ex(address)
            connections[fresh.fileno()] = fresh
            unsent[fresh.fileno()] = memoryview(words)
            poller.register(fresh, select.EPOLLOUT if words else select.EPOLLIN)
        for descriptor, event in poller.poll(0.01):
            with contextlib.suppress(OSError):
                if event == select.EPOLLOUT:
                    sent = connections[descriptor].send(unsent[descriptor])
                    unsent[descriptor] = unsent[descriptor][sent:]
                    if not unsent[descriptor]:
                        poller.modify(descriptor, select.EPOLLIN)
                    continue
                if event == select.EPOLLIN and connections[descriptor].recv(4096):
                    continue
            connections.pop(descriptor).close()


def send_commands(address: tuple[str, int], nbytes: int, end: float) -> None:
    """Greet, and send a first command of `nbytes` bytes, repeatedly until `end`."""
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(address, 1.0) as connection:
            connection.sendall(_GREETING + b"\x06" + struct.pack(">Q", nbytes))
            for _ in range(nbytes // len(_PIECE)):
                connection.sendall(_PIECE)
            connection.recv(4096)
            while connection.recv(4096):
                pass


def attack(arguments: argparse.Namespace) -> None:
    """Run an attack in this process."""
    host, port = arguments.address.split(":")
    address, end = (host, int(port)), time.monotonic() + arguments.seconds
    if arguments.attack != "handshakes":
        command = b"\x06" + struct.pack(">Q", _FRAME) + bytes(_FRAME - 1)
        words = {"idle": b"", "stalled": _GREETING, "full": _GREETING + command}
        keep_open(address, arguments.idle, words[arguments.attack], end)
        return
    common = address, arguments.megabytes << 20, end
    threads = [
        threading.Thread(target=send_commands, args=common, daemon=True)
        for _ in range(arguments.huge)
    ]
    for thread in threads:
        thread.start()
    time.sleep(arguments.seconds)


# The server and its members -----------------------------------------------------------------------


@contextlib.contextmanager
def graph_server(folder: Path, descriptors: int | None) -> Iterator[tuple[int, str, ClientKeys]]:
    """Start `khop serve` with keys, and yield its process id, address and keys."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, _NODES, (2, 10 * _NODES), generator=generator)
    features = torch.randn(_NODES, 100, generator=generator)
    RandomPartitioner(folder / "parts", 1, _NODES, edges, node_feat=features).partition()
    key_file, own = write_keys(folder / "keys")
    keys = read_client_keys(own)
    assert keys is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    run = "import sys; from khop.cli.main import main; sys.exit(main())"
    options = ["serve", str(folder / "parts"), "--master", address, "--key-file", str(key_file)]
    server = subprocess.Popen([sys.executable, "-c", run, *options], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None and server.stdout.readline(), "khop serve has ended"
        if descriptors is not None:
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
        yield server.pid, address, keys
    finally:
        server.send_signal(signal.SIGTERM)
        print(f"khop serve ended with status {server.wait(20)}")


def member(address: str, keys: ClientKeys) -> PartitionClient:
    """Return a client of the job."""
    return PartitionClient({0: Endpoint(f"tcp://{address}", keys.server_key)}, keys.credentials())


def ask(client: PartitionClient) -> None:
    """Fetch some rows."""
    ticket = client.fetch(0, "node", 0, np.arange(_ROWS), ["x"])
    client.wait([ticket])
    ticket.result()


def rate(client: PartitionClient, seconds: float) -> float:
    """Return the replies per second."""
    count, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        ask(client)
        count += 1
    return count / (time.monotonic() - began)


class Watch:
    """Resident memory and descriptors of a process: at present, and the maximum."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self.most = self.now()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def now(self) -> tuple[float, int]:
        """Return resident memory in MB, and the number of descriptors."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        count = sum(1 for _ in Path(f"/proc/{self._pid}/fd").iterdir())
        return int(resident.split()[1]) / 1024, count

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            memory, count = self.now()
            self.most = max(self.most[0], memory), max(self.most[1], count)

    def end(self) -> tuple[float, int]:
        """Stop, and return the maximum of both."""
        self._ended.set()
        self._thread.join()
        return self.most


def measure(name: str, arguments: argparse.Namespace, folder: Path) -> None:
    """Measure one attack on a new server."""
    with graph_server(folder / name, arguments.descriptors) as (pid, address, keys):
        client = member(address, keys)
        ask(client)
        quiet = rate(client, 3.0)
        watch = Watch(pid)
        before = watch.now()
        command = [sys.executable, __file__, "--attack", name, "--address", address]
        for option in ("idle", "huge", "megabytes", "seconds"):
            command += [f"--{option}", str(getattr(arguments, option))]
        strangers = subprocess.Popen(command)
        began = time.monotonic()
        while watch.most[1] < before[1] + 8 and time.monotonic() - began < 5:
            time.sleep(0.05)  # until their imports have ended
        time.sleep(2.0)
        waited: list[float] = []
        newcomer = threading.Thread(target=arrive, args=(address, keys, waited))
        newcomer.start()
        meanwhile = rate(client, 0.5 * arguments.seconds)
        newcomer.join()
        strangers.wait()
        most = watch.end()
        time.sleep(7.0)  # handshakes time out after 5 s
        after = watch.now()
        print(
            f"{name:11s} MB {before[0]:.0f}, at most {most[0]:.0f}, after {after[0]:.0f}, "
            f"descriptors {before[1]}, at most {most[1]}, after {after[1]}, "
            f"member {quiet:.0f} replies/s, meanwhile {meanwhile:.0f} ({meanwhile / quiet:.2f}), "
            f"another member's first reply after {waited[0]:.1f} s"
        )
        client.close()


def arrive(address: str, keys: ClientKeys, waited: list[float]) -> None:
    """Connect a new member, and append the wait for its first reply to `waited`."""
    began = time.monotonic()
    client = member(address, keys)
    ask(client)
    client.close()
    waited.append(time.monotonic() - began)


def main() -> None:
    """Measure all attacks, or run one attack in this process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--huge", type=int, default=12)
    parser.add_argument("--megabytes", type=int, default=250)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--descriptors", type=int)
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if arguments.attack is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        attack(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ATTACKS:
            measure(name, arguments, Path(folder))


if __name__ == "__main__":
    main()
