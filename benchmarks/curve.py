#!/usr/bin/env python3
"""Throughput of khop's row fetch under CURVE, compared with a bare loop of libzmq's CURVE.

    python benchmarks/curve.py                  # a minute

A `PartitionClient` fetches rows from a partition server over TCP on loopback, with and without
CURVE. Replies have 1 MB. A few requests are in flight at a time, as in samplers. The bare loop
sends frames of the same count and size in both directions. It has no JSON, checks, gathers or
arrays.

Server and client are separate processes. Cases take turns. Ratios are computed per turn. The result
is the median ratio, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from khop.channel.message import pack, unpack
from khop.distributed.processes.child import ChildProcess, wait_for_message
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.keys import JobKeys
from khop.distributed.rpc.partition_client import PartitionClient
from khop.partition import PartitionFolder

_ROWS = 2000  # rows of 520 bytes, id included: the reply to a sampler's request fits a frame
_IN_FLIGHT = 4
_PART = 1
_CASES = ("bare, CURVE", "khop, CURVE", "bare, plain", "khop, plain")


def make_folder(root: Path) -> PartitionFolder:
    """Partition 200,000 nodes with 128 float32 features into two parts of 51 MB."""
    import torch
    from torch_geometric.data import Data

    from khop.partition import RandomPartitioner

    num_nodes = 200_000
    data = Data(
        x=torch.rand(num_nodes, 128), edge_index=torch.randint(num_nodes, (2, 10 * num_nodes))
    )
    RandomPartitioner.from_data(data, root, 2).partition()
    return PartitionFolder(root)


@contextmanager
def khop_fetch(folder: PartitionFolder, keys: JobKeys | None) -> Iterator[Callable[[], int]]:
    """Yield a function that fetches 32 replies and returns their bytes."""
    config = {
        "root": str(folder.root),
        "part": _PART,
        "ipc_path": None,
        "tcp_host": "127.0.0.1",
        "curve": None if keys is None else keys.for_servers().curve(),
        "num_threads": 1,
    }
    server = ChildProcess("khop.distributed.rpc.partition_server", config)
    try:
        message = wait_for_message(server.line)
        assert message is not None
        address = message.json()["addresses"]["tcp"]
        own = None if keys is None else keys.for_client()
        endpoint = Endpoint(address, None if own is None else own.server_key)
        client = PartitionClient({_PART: endpoint}, None if own is None else own.credentials())
        bounds = folder.meta.node_types[0].bounds
        random = np.random.default_rng(1)

        def fetch() -> int:
            before = client.bytes_received
            waiting: list[Any] = []
            for _ in range(32):
                ids = random.integers(bounds[_PART], bounds[_PART + 1], _ROWS)
                waiting.append(client.fetch(_PART, "node", 0, ids, ["id", "x"]))
                if len(waiting) == _IN_FLIGHT:
                    client.wait(waiting[:1])
                    waiting.pop(0).result()
            client.wait(waiting)
            return client.bytes_received - before

        yield fetch
        client.close()
    finally:
        server.close()


def frames_of(folder: PartitionFolder) -> tuple[list[int], list[int]]:
    """Return the sizes of the frames of a request and of its reply."""
    from khop.distributed.rpc.partition_handler import RequestHandler
    from khop.distributed.rpc.protocol import PROTOCOL
    from khop.storage.part import Part

    first = folder.meta.node_types[0].bounds[_PART]
    header = {"op": "fetch", "element": "node", "index": 0, "names": ["id", "x"]}
    common = {"protocol": PROTOCOL, "id": 1000, "part": _PART}
    request = pack({**header, **common}, [np.arange(first, first + _ROWS)])
    reply = RequestHandler(Part(folder, _PART))([bytes(frame) for frame in request])
    assert "error" not in unpack(reply)[0]
    return [len(frame) for frame in request], [len(frame) for frame in reply]


@contextmanager
def bare_loop(
    sizes: tuple[list[int], list[int]], keys: JobKeys | None
) -> Iterator[Callable[[], int]]:
    """Yield a function that receives the same frames from a bare server, and counts bytes."""
    curve = [] if keys is None else [keys.server.public, keys.server.secret]
    command = [sys.executable, __file__, "--bare", ",".join(map(str, sizes[1]))]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(" ".join(curve) + "\n")
    server.stdin.flush()
    address = server.stdout.readline().strip()
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    if keys is not None:
        socket.curve_serverkey = keys.server.public.encode()
        own = keys.for_client().client
        socket.curve_publickey, socket.curve_secretkey = own.public.encode(), own.secret.encode()
    socket.connect(address)
    request = [bytes(size) for size in sizes[0]]

    def fetch() -> int:
        received = 0
        for step in range(32 + _IN_FLIGHT):
            if step < 32:
                socket.send_multipart(request, copy=False)
            if step >= _IN_FLIGHT:
                received += sum(len(frame) for frame in socket.recv_multipart(copy=False))
        return received

    try:
        yield fetch
    finally:
        socket.close(0)
        context.term()
        server.stdin.close()
        server.wait(10)


def serve_bare(sizes: list[int]) -> None:
    """Reply to each request with frames of these sizes, until stdin closes."""
    curve = sys.stdin.readline().split()
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    if curve:
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = (key.encode() for key in curve)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    print(f"tcp://127.0.0.1:{port}", flush=True)
    frames = [memoryview(bytearray(size)) for size in sizes]
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if socket not in ready:
            return
        peer, *_ = socket.recv_multipart(copy=False)
        socket.send_multipart([peer, *frames], copy=False)


def rate(fetch: Callable[[], int], seconds: float) -> float:
    """Return the megabytes per second of a fetch function."""
    fetch()
    began, nbytes = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        nbytes += fetch()
    return nbytes / (time.perf_counter() - began) / 1e6


def main() -> None:
    """Run the benchmark, or the bare server."""
    if sys.argv[1:2] == ["--bare"]:
        serve_bare([int(size) for size in sys.argv[2].split(",")])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--repeat", type=int, default=7, help="turns (7)")
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="seconds of a case in a turn (1.5)"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="khop-curve-") as temporary, ExitStack() as stack:
        folder = make_folder(Path(temporary) / "parts")
        sizes, keys = frames_of(folder), JobKeys.new()
        cases = {}
        for name in _CASES:
            secured = keys if name.endswith("CURVE") else None
            made = (
                bare_loop(sizes, secured)
                if name.startswith("bare")
                else khop_fetch(folder, secured)
            )
            cases[name] = stack.enter_context(made)
        turns = [
            {name: rate(fetch, arguments.seconds) for name, fetch in cases.items()}
            for _ in range(arguments.repeat)
        ]
    for name in _CASES:
        print(f"{name:12}  {_spread([turn[name] for turn in turns], '.0f')} MB/s")
    for case, base in (
        ("khop, CURVE", "bare, CURVE"),
        ("khop, plain", "bare, plain"),
        ("khop, CURVE", "khop, plain"),
    ):
        ratios = [turn[case] / turn[base] for turn in turns]
        print(f"{case} : {base}  {_spread(ratios, '.2f')}")


def _spread(values: list[float], form: str) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):{form}} ({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    main()
