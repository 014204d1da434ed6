"""Attacks of a hostile member of a job on a graph server, and their effect on an honest member.

    python benchmarks/members.py [--seconds 8] [--scale 0.01]

The program starts `khop serve`'s program on loopback, with a key pair for each of two clients. The
honest client requests batches all the time, and compares each batch with the first batch of the
same seeds. The hostile client runs in a separate process. It repeats an attack as fast as it can.

The program prints these figures per attack:

- the rate of the honest client, compared with its rate before the attack
- the same rate, compared with its rate during the same attack on another server of this machine,
  which uses as much processor time
- waits of the honest client for new ids of a few nodes and for its session's heartbeat: median and
  maximum, before and during the attack
- the largest resident memory of the server
- the number of changed batches

The program checks only that the server survives. At the end, a server receives all attacks and
SIGTERM. Attacks::

    nested      publishes values nested 985 deep, and requests them
    doubled     opens sessions that name an attribute twice
    servers     registers as server 0, says goodbye for all, registers clients with long names
    unread      requests all published values and never reads a reply
    crowd       40 connections, each with pending requests for a million ids
    sessions    opens and closes sessions, also the sessions that statistics name
    labor       draws many times by LABOR from a row of 200,000 neighbours
    excluded    draws from this row around 100,000 excluded edges
    induced     searches this row for edges among no nodes
    opens       opens sessions of a thousand hops that exceed the limits
    waits       waits for values of all clients, and publishes one
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq
from torch_geometric.data import Data

from hostile_member import (
    ATTACKS,
    Member,
    attack,
    excluded,
    induced,
    labor,
    opens,
    session_of,
    waits,
)
from khop.channel.control import Op
from khop.channel.layout import Layout
from khop.channel.message import pack
from khop.distributed.loaders.sampling_options import collect_spec
from khop.distributed.processes.child import ChildProcess, wait_for_message
from khop.distributed.remote.messages import ToNewIds
from khop.distributed.remote.session_messages import (
    Acknowledge,
    Alive,
    Batch,
    Close,
    Open,
)
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.keys import ClientKeys, JobKeys
from khop.distributed.rpc.protocol import request_header
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.partition import PartitionFolder, RandomPartitioner
from khop.sampler.spec import SamplingSpec

_SEEDS, _ROUNDS = 256, 8
_HUB_DEGREE = 200_000


# The honest client --------------------------------------------------------------------------------


class Honest:
    """Client that requests batches of the same few seeds, and compares them with the first ones."""

    def __init__(self, address: str, keys: ClientKeys, spec: PipelineSpec) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        endpoint = Endpoint(address, keys.server_key)
        self._connection = Connection(self._context, keys.credentials(), endpoint)
        self._spec = session_of("honest", spec)
        self._next = 0
        self._layouts: dict[int, Layout] = {}
        self._arrived: dict[int, list[bytes]] = {}
        self._known: dict[int, int] = {}
        self.batches = self.changed = 0

    def _send(self, request: Any, arrays: Any = ()) -> None:
        self._connection.send(pack(request_header(request, 1), list(arrays)))

    def _ask(self) -> None:
        self._next += 1
        index = self._next % _ROUNDS
        seeds = np.arange(_SEEDS)[None] + index * _SEEDS
        self._send(Batch("honest", self._next, index, 7), [seeds])

    def run(self, seconds: float) -> float:
        """Receive batches for some seconds, and return the batches per second."""
        began, before = time.monotonic(), self.batches
        while time.monotonic() - began < seconds:
            self._pump()
            poller = zmq.Poller()
            for each in self._connection.sockets():
                poller.register(each, zmq.POLLIN)
            poller.poll(100)
        return (self.batches - before) / (time.monotonic() - began)

    def _pump(self) -> None:
        if self._connection.pump():
            self._send(Open(self._spec, [], []))
        nbytes = 0
        for header, arrays, _ in self._connection.receive():
            if header.get("event") == "layout":
                layout = Layout.from_json(json.loads(arrays[0].tobytes()))
                self._layouts[header["layout"]] = layout
            elif header.get("event") == "chunk":
                nbytes += max(len(arrays[0]), 4096)
                self._take(header, arrays[0].tobytes())
            elif "held" in header:
                for _ in range(6):
                    self._ask()
            elif (
                header.get("error", {}).get("type") == "LookupError"
            ):  # the session ended after a long silence
                self._arrived.clear()
                self._send(Open(self._spec, [], []))
            elif "error" in header:
                raise RuntimeError(header["error"])
        if nbytes:
            self._send(Acknowledge("honest", nbytes))

    def _take(self, header: dict[str, Any], chunk: bytes) -> None:
        batch = header["batch_id"]
        pieces = self._arrived.setdefault(batch, [])
        pieces.append(chunk)
        if header["offset"] + len(chunk) == header["nbytes"]:
            raw = b"".join(self._arrived.pop(batch))
            # The arrays alone, because the bytes before them contain a time.
            received = self._layouts[header["layout"]].read(np.frombuffer(raw, np.uint8))
            checksum = zlib.crc32(b"".join(array.tobytes() for array in received.arrays))
            self.changed += checksum != self._known.setdefault(batch % _ROUNDS, checksum)
            self.batches += 1
            self._ask()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._context.destroy(0)


class Delays(threading.Thread):
    """Second connection of the honest client, with small requests ten times per second."""

    def __init__(self, address: str, keys: ClientKeys, spec: PipelineSpec) -> None:
        super().__init__(daemon=True)
        self._address, self._keys, self._spec = address, keys, spec
        self._ended = threading.Event()
        self.waited: dict[str, list[float]] = {"ids": [], "alive": []}

    def run(self) -> None:
        """Send requests until `end`."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        member = Member(context, self._address, self._keys)
        member.socket.rcvtimeo = 60_000
        member.ask(Open(session_of("delays", self._spec), [], []))
        ids = np.arange(10)
        while not self._ended.wait(0.1):
            for name, request, arrays in (
                ("ids", ToNewIds(0), [ids]),
                ("alive", Alive("delays"), []),
            ):
                began = time.monotonic()
                header, _ = member.ask(request, arrays)
                self.waited[name].append(time.monotonic() - began)
                assert "error" not in header, header
        member.ask(Close("delays"))
        context.destroy(0)

    def take_summary(self) -> str:
        """Return median and maximum of the waits since the last call, in milliseconds."""
        texts = []
        for name, waited in self.waited.items():
            ordered = sorted(waited) or [0.0]
            texts.append(f"{name} {1e3 * ordered[len(ordered) // 2]:.0f} ({1e3 * ordered[-1]:.0f})")
            waited.clear()
        return " ".join(texts)

    def end(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self.join(60)


# Both ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def graph_server(root: Path, keys: JobKeys, expects_end: bool = False) -> Iterator[tuple[int, str]]:
    """Start a server, and yield its process id and address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{probe.getsockname()[1]}"
    config = {"root": str(root), "rank": 0, "num_servers": 1, "num_clients": 0, "master": master}
    config["keys"] = keys.for_servers().to_json()
    process = ChildProcess("khop.distributed.remote.server.main", config)
    try:
        message = wait_for_message(process.line)
        assert message is not None and message.op is Op.READY, message
        yield process.pid, message.json()["addresses"]["tcp"]
        assert expects_end or not process.has_ended, f"the server {process.exit_status()}"
    finally:
        process.close()


def resident(pid: int) -> float:
    """Return the resident memory of a process in megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def main() -> int:
    """Run all attacks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS))
    arguments = parser.parse_args()
    keys = JobKeys.new(["honest", "hostile"])
    with tempfile.TemporaryDirectory(prefix="khop-members-") as temporary:
        root = Path(temporary) / "parts"
        generator = torch.Generator().manual_seed(1)
        edges = torch.randint(1, arguments.nodes, (2, 10 * arguments.nodes), generator=generator)
        hub = torch.stack([edges[0, :1].repeat(_HUB_DEGREE), torch.zeros(_HUB_DEGREE)]).long()
        hub[0] = torch.arange(_HUB_DEGREE) % arguments.nodes
        edges = torch.cat([edges, hub], 1)
        data = Data(x=torch.rand(arguments.nodes, 32), edge_index=edges)
        RandomPartitioner.from_data(data, root, 1, neighbor_ids=True).partition()
        meta = PartitionFolder(root).meta
        sampling = SamplingSpec.create([10, 5], [t.name for t in meta.edge_types])
        spec = PipelineSpec(sampling, collect_spec(meta, sampling, True))
        with graph_server(root, keys) as (pid, address), graph_server(root, keys) as (_, other):
            compare(arguments, keys, spec, (pid, address, other))
        print(f"ended by SIGTERM in {time_to_end(root, keys, spec):.2f} s")
    return 0


def time_to_end(root: Path, keys: JobKeys, spec: PipelineSpec) -> float:
    """Return the seconds from SIGTERM to the end of a busy server."""
    with contextlib.ExitStack() as stack:
        pid, address = stack.enter_context(graph_server(root, keys, expects_end=True))
        context = stack.enter_context(zmq.Context())
        member = Member(context, address, keys.for_client("hostile"))
        for run in (labor, excluded, induced, opens, waits):
            run([member], spec)
        time.sleep(1.0)
        began = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        return time.monotonic() - began


def compare(
    arguments: argparse.Namespace, keys: JobKeys, spec: PipelineSpec, at: tuple[int, str, str]
) -> None:
    """Print a line per attack."""
    pid, address, other = at
    honest = Honest(address, keys.for_client("honest"), spec)
    honest.run(3.0)
    delays = Delays(address, keys.for_client("honest"), spec)
    delays.start()
    print(f"server: {resident(pid):.0f} MB at the start")
    for name in arguments.only or ATTACKS:
        delays.take_summary()
        quiet = honest.run(arguments.seconds)
        before = delays.take_summary()
        rates, most = [], resident(pid)
        for target in (other, address):
            attack_args = name, target, keys.for_client("hostile"), spec, arguments.seconds
            hostile = multiprocessing.get_context("spawn").Process(target=attack, args=attack_args)
            hostile.start()
            honest.run(2.0)  # until the process has started
            delays.take_summary()
            parts = []
            for _ in range(4):
                parts.append(honest.run((arguments.seconds - 3.0) / 4))
                most = max(most, resident(pid))
            rates.append(sum(parts) / len(parts))
            during = delays.take_summary()
            hostile.join(30)
            hostile.kill()
        honest.run(1.0)
        print(
            f"{name:10s} {quiet:6.1f} batches/s before, {rates[1]:6.1f} during: "
            f"ratio {rates[1] / quiet:.2f}, ratio to an attack on another server ({rates[0]:.1f}) "
            f"{rates[1] / rates[0]:.2f}, ms {before} before, {during} during, "
            f"{most:.0f} MB at most, "
            f"{honest.changed} of {honest.batches} batches changed",
            flush=True,
        )
    delays.end()
    honest.close()


if __name__ == "__main__":
    sys.exit(main())
