"""What a hostile member of a job makes of a graph server, and what an honest one notices of it.

    python benchmarks/members.py [--seconds 8] [--scale 0.01]

Starts `khop serve`'s program with a key pair for each of two clients on loopback. One asks for
batches all the time and compares each with the first one of the same seeds. The other, a process of
its own, does what the names below say, as fast as it is answered or faster. For each it prints the
honest client's rate against that before, and against that while the same is done to *another*
server on this machine, which takes as much of the processors; how long the honest client waits for
new ids of a few nodes and for its session's heartbeat, in the middle and at most, before and
meanwhile; the server's resident memory at most; and whether a batch has changed. Nothing is
asserted but that the server lives. Last, a server is sent all of it and SIGTERM.

    nested      publishes values nested 985 deep, and asks for them
    doubled     opens sessions that name an attribute twice
    servers     registers as server 0, says goodbye for all, registers clients under long names
    unread      asks for everything that was published and never reads a reply
    crowd       40 connections, each with requests for a million ids waiting
    sessions    opens and closes sessions, takes over those that statistics name
    labor       draws from a row of 200,000 neighbours, again and again, by LABOR
    excluded    draws from it around 100,000 excluded edges
    induced     looks for edges among no nodes in it
    opens       opens sessions of a thousand hops that do not fit
    waits       waits for values of everybody, and publishes one
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


# The honest one -----------------------------------------------------------------------------------


class Honest:
    """Asks for batches of the same few seeds again and again, and knows what they must be."""

    def __init__(self, address: str, keys: ClientKeys, spec: PipelineSpec) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        endpoint = Endpoint(address, keys.server_key)
        self._link = Connection(self._context, keys.credentials(), endpoint)
        self._spec = session_of("honest", spec)
        self._number = 0
        self._layouts: dict[int, Layout] = {}
        self._arrived: dict[int, list[bytes]] = {}
        self._known: dict[int, int] = {}
        self.batches = self.changed = 0

    def _send(self, request: Any, arrays: Any = ()) -> None:
        self._link.send(pack(request_header(request, 1), list(arrays)))

    def _ask(self) -> None:
        self._number += 1
        which = self._number % _ROUNDS
        seeds = np.arange(_SEEDS)[None] + which * _SEEDS
        self._send(Batch("honest", self._number, which, 7), [seeds])

    def run(self, seconds: float) -> float:
        """Batches a second."""
        began, before = time.monotonic(), self.batches
        while time.monotonic() - began < seconds:
            self._pump()
            poller = zmq.Poller()
            for each in self._link.sockets():
                poller.register(each, zmq.POLLIN)
            poller.poll(100)
        return (self.batches - before) / (time.monotonic() - began)

    def _pump(self) -> None:
        if self._link.pump():
            self._send(Open(self._spec, [], []))
        nbytes = 0
        for header, arrays, _ in self._link.receive():
            if header.get("event") == "layout":
                layout = Layout.from_json(json.loads(arrays[0].tobytes()))
                self._layouts[header["layout"]] = layout
            elif header.get("event") == "chunk":
                nbytes += max(len(arrays[0]), 4096)
                self._take(header, arrays[0].tobytes())
            elif "held" in header:
                for _ in range(6):
                    self._ask()
            elif header.get("error", {}).get("type") == "LookupError":  # it was silent for long
                self._arrived.clear()
                self._send(Open(self._spec, [], []))
            elif "error" in header:
                raise RuntimeError(header["error"])
        if nbytes:
            self._send(Acknowledge("honest", nbytes))

    def _take(self, header: dict[str, Any], chunk: bytes) -> None:
        number = header["batch_id"]
        pieces = self._arrived.setdefault(number, [])
        pieces.append(chunk)
        if header["offset"] + len(chunk) == header["nbytes"]:
            raw = b"".join(self._arrived.pop(number))
            # The arrays alone: what stands before them says when it was made, too.
            received = self._layouts[header["layout"]].read(np.frombuffer(raw, np.uint8))
            found = zlib.crc32(b"".join(array.tobytes() for array in received.arrays))
            self.changed += found != self._known.setdefault(number % _ROUNDS, found)
            self.batches += 1
            self._ask()

    def close(self) -> None:
        """Leaves."""
        self._link.close()
        self._context.destroy(0)


class Delays(threading.Thread):
    """A connection of the honest one that asks for little, ten times a second."""

    def __init__(self, address: str, keys: ClientKeys, spec: PipelineSpec) -> None:
        super().__init__(daemon=True)
        self._address, self._keys, self._spec = address, keys, spec
        self._ended = threading.Event()
        self.waited: dict[str, list[float]] = {"ids": [], "alive": []}

    def run(self) -> None:
        """Asks until `end`."""
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

    def told(self) -> str:
        """Milliseconds since the last call: in the middle, and at most."""
        texts = []
        for name, waited in self.waited.items():
            some = sorted(waited) or [0.0]
            texts.append(f"{name} {1e3 * some[len(some) // 2]:.0f} ({1e3 * some[-1]:.0f})")
            waited.clear()
        return " ".join(texts)

    def end(self) -> None:
        """Leaves."""
        self._ended.set()
        self.join(60)


# Both ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def graph_server(root: Path, keys: JobKeys, expects_end: bool = False) -> Iterator[tuple[int, str]]:
    """A server: process id and address."""
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
    """Megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def main() -> int:
    """Runs all attacks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS))
    arguments = parser.parse_args()
    keys = JobKeys.new(["honest", "hostile"])
    with tempfile.TemporaryDirectory(prefix="khop-members-") as place:
        root = Path(place) / "parts"
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
    """Seconds from SIGTERM to the end of a server at work."""
    with contextlib.ExitStack() as stack:
        pid, address = stack.enter_context(graph_server(root, keys, expects_end=True))
        context = stack.enter_context(zmq.Context())
        member = Member(context, address, keys.for_client("hostile"))
        for of in (labor, excluded, induced, opens, waits):
            of([member], spec)
        time.sleep(1.0)
        began = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        return time.monotonic() - began


def compare(
    arguments: argparse.Namespace, keys: JobKeys, spec: PipelineSpec, at: tuple[int, str, str]
) -> None:
    """Prints a line for each attack."""
    pid, address, other = at
    honest = Honest(address, keys.for_client("honest"), spec)
    honest.run(3.0)
    delays = Delays(address, keys.for_client("honest"), spec)
    delays.start()
    print(f"server: {resident(pid):.0f} MB at the start")
    for name in arguments.only or ATTACKS:
        delays.told()
        quiet = honest.run(arguments.seconds)
        before = delays.told()
        rates, most = [], resident(pid)
        for target in (other, address):
            words = name, target, keys.for_client("hostile"), spec, arguments.seconds
            hostile = multiprocessing.get_context("spawn").Process(target=attack, args=words)
            hostile.start()
            honest.run(2.0)  # it takes that long to start
            delays.told()
            parts = []
            for _ in range(4):
                parts.append(honest.run((arguments.seconds - 3.0) / 4))
                most = max(most, resident(pid))
            rates.append(sum(parts) / len(parts))
            during = delays.told()
            hostile.join(30)
            hostile.kill()
        honest.run(1.0)
        print(
            f"{name:10s} {quiet:6.1f} batches a second, then {rates[1]:6.1f}: "
            f"{rates[1] / quiet:.2f}; against the same on another server ({rates[0]:.1f}) "
            f"{rates[1] / rates[0]:.2f}; ms {before}, meanwhile {during}; at most {most:.0f} MB; "
            f"{honest.changed} of {honest.batches} batches changed",
            flush=True,
        )
    delays.end()
    honest.close()


if __name__ == "__main__":
    sys.exit(main())
