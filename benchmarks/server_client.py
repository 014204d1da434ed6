"""Cost and fairness of server-client mode.

    python benchmarks/server_client.py overhead [--scale 0.05] [--batches 30] [--turns 7]
    python benchmarks/server_client.py checks   [--scale 0.05] [--batches 30]
    python benchmarks/server_client.py clients  [--clients 64]
    python benchmarks/server_client.py curve

- `overhead` compares worker mode with a graph server of this machine, with one sampler process.
  Cases take turns. Batches come from the products-shaped graph (fan-outs 15, 10, 5, batch size
  1024). The server writes them into the trainer's memory, as usual on one machine, or sends them,
  as between machines. The trainer only takes the batches.
- `checks` compares the time of a receiver's checks of a batch with the time to make the batch.
- `clients` starts --clients clients with one sampler each. They request small batches from one
  server at full speed. It prints the batches per client.
- `curve` prints bytes per second of a session's stream, with and without CURVE, and of a bare
  ZeroMQ loop with the same messages.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq
from torch_geometric.data import Data

from khop import codec
from khop.channel.control import Op
from khop.channel.layout import Record
from khop.channel.message import pack
from khop.data.steps import run
from khop.distributed.loaders.sampling_options import collect_spec
from khop.distributed.processes.child import ChildProcess, wait_for_message
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.client.batch_checks import BatchChecks, BatchSchema
from khop.distributed.remote.client.local_sampler import LocalSamplerFactory
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import Statistics, new_secret, read_json
from khop.distributed.remote.session_messages import Acknowledge, Batch, Open, SessionSpec
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.keys import JobKeys
from khop.distributed.rpc.protocol import request_header
from khop.distributed.sampling.pipeline import Pipeline, PipelineSpec
from khop.distributed.sampling.pool import SamplerPool
from khop.partition import PartitionFolder, RandomPartitioner
from khop.sampler.plan import EpochPlan
from khop.sampler.spec import SamplingSpec
from khop.storage.part import Part
from khop_bench.graphs import Graphs, SeedOrder
from khop_bench.settings import default_cache

FANOUTS = (15, 10, 5)
BATCH_SIZE = 1024
CHUNK = 1 << 20


def spec_of(folder: PartitionFolder, fanouts: tuple[int, ...]) -> PipelineSpec:
    """Return the spec of batches with all node attributes."""
    sampling = SamplingSpec.create(list(fanouts), [t.name for t in folder.meta.edge_types])
    return PipelineSpec(sampling, collect_spec(folder.meta, sampling, True))


@contextlib.contextmanager
def graph_server(root: Path, keys: JobKeys | None = None) -> Iterator[tuple[Servers, str]]:
    """Start a server of a folder of one part, and yield its addresses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{probe.getsockname()[1]}"
    config = {"root": str(root), "rank": 0, "num_servers": 1, "num_clients": 0, "master": master}
    config["keys"] = None if keys is None else keys.for_servers().to_json()
    config["buffer_limit"] = 64 << 30
    process = ChildProcess("khop.distributed.remote.server.main", config)
    try:
        message = wait_for_message(process.line)
        assert message is not None and message.op is Op.READY, message
        servers = Servers(
            master,
            None if keys is None else keys.server.public,
            None if keys is None else keys.for_client().credentials(),
        )
        yield servers, message.json()["addresses"]["tcp"]
    finally:
        process.close()


def statistics_of(watcher: DirectoryClient) -> dict[str, Any]:
    """Return the statistics of the server."""
    content: dict[str, Any] = read_json(watcher.request(0, Statistics()).arrays, "the server")
    return content


# Overhead -----------------------------------------------------------------------------------------


def overhead(arguments: argparse.Namespace) -> None:
    """Compare worker mode with a graph server of the same machine."""
    graphs = Graphs(default_cache(), arguments.scale)
    root = graphs.products_parts(1)
    data = graphs.products(with_features=False)
    folder = PartitionFolder(root)
    spec = spec_of(folder, FANOUTS)
    order = SeedOrder(data.train_mask.nonzero().view(-1), BATCH_SIZE)
    seeds = order.epoch(arguments.batches).numpy()
    columns = folder.id_map("node")[seeds].astype(np.int64)[None]
    plan = EpochPlan(columns.shape[1], order.batch_size)
    with graph_server(root) as (servers, _), watching(servers) as watcher:
        ring = 6 * 400 * (1 << 20) // max(1, round(1 / arguments.scale))
        watcher.wait_for_servers()
        remote = remote_config(servers, folder, spec, ring)
        common = [None], 4, False, ring, 0, None
        groups = {
            "worker mode": SamplerPool(local_config(folder, spec), *common),
            "shared memory": SamplerPool(
                remote, *common, program=LocalSamplerFactory(watcher, [0])
            ),
            "sent": SamplerPool(remote, *common, program=receiver),
        }
        times: dict[str, list[float]] = {name: [] for name in groups}
        for turn in range(arguments.turns + 1):
            for name, group in groups.items():
                seconds = epoch_of(group, plan, columns)
                if turn:  # the first turn touches all memory for the first time
                    times[name].append(1e3 * seconds / plan.num_batches)
        for name, values in times.items():
            pairs = zip(values, times["worker mode"], strict=True)
            ratios = sorted(value / base for value, base in pairs)
            print(
                f"{name:14s} {statistics.median(values):8.2f} ms per batch  "
                f"(min {min(values):.2f}), {statistics.median(ratios):.3f} of worker mode "
                f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
            )
        count = plan.num_batches * (arguments.turns + 1)
        counts = statistics_of(watcher)
        streams = [session for session in counts["sessions"] if not session["direct"]]
        spent = {
            "sampler, worker mode": processor_seconds(groups["worker mode"].workers[0].pid),
            "sampler, shared memory": processor_seconds(groups["shared memory"].workers[0].pid),
            "sampler, sent": processor_seconds(streams[0]["samplers"][0]["pid"]),
            "graph server, sent": counts["cpu_seconds"],
            "receiver, sent": processor_seconds(groups["sent"].workers[0].pid),
        }
        for name, seconds in spent.items():
            print(f"{name:24s} {1e3 * seconds / count:8.2f} ms of processor time per batch")
        print(f"per batch: {counts['batches']['bytes'] / counts['batches']['count'] / 1e6:.1f} MB")
        for group in groups.values():
            group.close()


def processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process so far, start-up included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def receiver(config: Any, memory: Any) -> ChildProcess:
    """Start a receiver process, which fetches batches from servers."""
    return ChildProcess("khop.distributed.remote.client.receiver", config, memory)


def local_config(folder: PartitionFolder, spec: PipelineSpec) -> dict[str, Any]:
    """Return the config of a sampler process of worker mode."""
    return {
        "root": str(folder.root),
        "part": 0,
        "pipeline": spec.to_json(),
        "methods": [],
        "endpoints": {},
        "credentials": None,
        "timeout": 60.0,
        "concurrency": 4,
        "graph_mode": "CPU",
        "feature_mode": "CPU",
        "pin_memory": False,
        "cache_bytes": 0,
        "lookahead": [0, 0],
    }


def remote_config(
    servers: Servers, folder: PartitionFolder, spec: PipelineSpec, ring: int
) -> dict[str, Any]:
    """Return the config of a receiver."""
    return {
        "master": asdict(servers.directory),
        "credentials": None,
        "servers": [0],
        "session": {
            "loader": "bench",
            "secret": new_secret(),
            "client": "bench",
            "pipeline": spec.to_json(),
            "num_workers": 1,
            "buffer_bytes": ring,
            "concurrency": 4,
            "worker_devices": None,
            "max_restarts": 0,
        },
        "methods": [],
        "schema": codec.to_json(BatchSchema.create(folder.meta, spec)),
        "depth": 4,
        "timeout": 60.0,
        "batch_limit": 1 << 30,
    }


def epoch_of(group: SamplerPool, plan: EpochPlan, columns: Any) -> float:
    """Return the seconds of an epoch, extrapolated from all batches but the first."""
    epoch = group.new_epoch()
    group.open_epoch(epoch, 7, plan, columns)
    group.take(epoch, 0)
    began = time.perf_counter()
    for batch in range(1, plan.num_batches):
        group.take(epoch, batch)
    seconds = time.perf_counter() - began
    group.close_epoch(epoch)
    return seconds * plan.num_batches / max(plan.num_batches - 1, 1)


# Checks -------------------------------------------------------------------------------------------


def checks(arguments: argparse.Namespace) -> None:
    """Compare the time to check a batch with the time to make it."""
    graphs = Graphs(default_cache(), arguments.scale)
    folder = PartitionFolder(graphs.products_parts(1))
    spec = spec_of(folder, FANOUTS)
    seeds = np.random.default_rng(1).permutation(folder.meta.node_types[0].count)
    pipeline = Pipeline(Part(folder, 0), spec, None)
    checker = BatchChecks(BatchSchema.create(folder.meta, spec), spec)
    made: list[float] = []
    checked: list[float] = []
    for batch in range(arguments.batches + 2):
        columns = np.take(seeds, range(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE), mode="wrap")
        memory: list[Any] = []

        def allocate(record: Record, memory: list[Any] = memory) -> Any:
            memory.append(np.empty(record.nbytes, np.uint8))
            return record.write(memory[0].data)

        began = time.perf_counter()
        record = run(pipeline.make(columns[None], 7, batch, allocate), None)
        middle = time.perf_counter()
        checker.check_batch(record.layout, memory[0], batch, BATCH_SIZE)
        made.append(1e3 * (middle - began))
        checked.append(1e3 * (time.perf_counter() - middle))
    (nodes,), (edges,) = (record.layout.read(memory[0]).counter(n) for n in ("nodes", "edges"))
    making, checking = statistics.median(made[2:]), statistics.median(checked[2:])
    print(f"per batch: {nodes} nodes, {edges} edges, {record.nbytes / 1e6:.1f} MB")
    print(f"made in {making:.2f} ms, checked in {checking:.3f} ms: {checking / making:.2%}")


# Clients ------------------------------------------------------------------------------------------


class Client:
    """Session without a receiver, which requests the next batch when a batch has arrived."""

    def __init__(
        self, servers: Servers, address: str, spec: PipelineSpec, name: str, **options: Any
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        endpoint = Endpoint(address, servers.server_key)
        self.connection = Connection(self._context, servers.credentials, endpoint)
        self._name = name
        self._next = 0
        self.batches = 0
        self.bytes = 0
        self.is_open = False
        common = {"concurrency": 2, "buffer_bytes": 16 << 20, **options}
        self._spec = SessionSpec(
            session=name,
            secret=name,
            client=name,
            pipeline=spec,
            num_workers=1,
            depth=8,
            worker_devices=None,
            max_restarts=0,
            timeout=60.0,
            credits=8 << 20,
            **common,
        )

    def send(self, request: Any, arrays: Any = ()) -> None:
        """Send a request."""
        self.connection.send(pack(request_header(request, 1), list(arrays)))

    def ask(self, seeds: Any) -> None:
        """Request another batch."""
        self._next += 1
        self.send(Batch(self._name, self._next, self._next, 1), [seeds])

    def pump(self, seeds: Any) -> None:
        """Receive messages, and request one batch per received batch."""
        if self.connection.pump():
            self.send(Open(self._spec, [], []))
        received = 0
        for header, arrays, _ in self.connection.receive():
            if "error" in header:
                raise RuntimeError(header["error"])
            if header.get("event") == "chunk":
                received += max(len(arrays[0]), 4096)
                self.bytes += len(arrays[0])
                if header["offset"] + len(arrays[0]) == header["nbytes"]:
                    self.batches += 1
                    self.ask(seeds)
            elif "held" in header:
                self.is_open = True
                for _ in range(6):
                    self.ask(seeds)
        if received:
            self.send(Acknowledge(self._name, received))


def clients(arguments: argparse.Namespace) -> None:
    """Count the batches per client of many clients on one server."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "parts"
        edges = torch.randint(0, 20_000, (2, 200_000))
        RandomPartitioner.from_data(
            Data(x=torch.rand(20_000, 100), edge_index=edges), root, 1
        ).partition()
        spec = spec_of(PartitionFolder(root), (10, 5))
        with graph_server(root) as (servers, address), watching(servers) as watcher:
            many = [Client(servers, address, spec, f"c{i}") for i in range(arguments.clients)]
            seeds = np.arange(64)[None]
            end = time.monotonic() + 120
            while not all(client.batches > 3 for client in many):
                pump_all(many, seeds)
                if time.monotonic() > end:
                    raise TimeoutError("clients do not start")
            before = [client.batches for client in many]
            end, most = time.monotonic() + arguments.seconds, 0
            looked = time.monotonic()
            while time.monotonic() < end:
                pump_all(many, seeds)
                if time.monotonic() - looked > 1:
                    looked = time.monotonic()
                    counts = statistics_of(watcher)
                    most = max(most, sum(s["buffered_bytes"] for s in counts["sessions"]))
            got = sorted(c.batches - b for c, b in zip(many, before, strict=True))
            mean = statistics.mean(got)
            print(f"{len(many)} clients, {sum(got)} batches in {arguments.seconds} s")
            print(f"per client: mean {mean:.1f}, min {got[0]}, max {got[-1]}", end=", ")
            print(f"off the mean by {max(got[-1] / mean - 1, 1 - got[0] / mean):.1%}")
            limit = sum(16 << 20 for _ in many)
            print(f"buffered at most {most / 1e6:.1f} MB of {limit / 1e6:.1f} MB allowed")
            print(f"server: rss {counts['rss'] / 1e6:.0f} MB, {counts['descriptors']} descriptors")
            for client in many:
                client.connection.close()


@contextlib.contextmanager
def watching(servers: Servers) -> Iterator[DirectoryClient]:
    """Yield a client that only reads statistics."""
    client = DirectoryClient(servers)
    try:
        yield client
    finally:
        client.close()


def pump_all(many: list[Client], seeds: Any) -> None:
    """Wait for messages, and let all clients receive them."""
    poller = zmq.Poller()
    for client in many:
        for each in client.connection.sockets():
            poller.register(each, zmq.POLLIN)
    poller.poll(100)
    for client in many:
        client.pump(seeds)


# CURVE --------------------------------------------------------------------------------------------


def curve(arguments: argparse.Namespace) -> None:
    """Compare a session's stream over TCP with bare loops, with and without CURVE."""
    total = arguments.megabytes << 20
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "parts"
        # Batches of 32 MB with almost no sampling work.
        RandomPartitioner.from_data(
            Data(x=torch.rand(2000, 4096), edge_index=torch.zeros(2, 1, dtype=torch.int64)),
            root,
            1,
        ).partition()
        spec = spec_of(PartitionFolder(root), (1,))
        rates: dict[str, list[float]] = {}
        for _ in range(arguments.turns):
            for keys in (None, JobKeys.new()):
                security = "plain" if keys is None else "CURVE"
                stream, bare = stream_rate(root, spec, keys, total), bare_rate(keys, total)
                rates.setdefault(f"{security} stream", []).append(stream)
                rates.setdefault(f"{security} bare", []).append(bare)
                rates.setdefault(f"{security} ratio", []).append(stream / bare)
    for name, values in rates.items():
        unit = "" if name.endswith("ratio") else " MB/s"
        scale = 1 if name.endswith("ratio") else 1e6
        print(f"{name:14s} {statistics.median(values) / scale:9.3f}{unit}")


def stream_rate(root: Path, spec: PipelineSpec, keys: JobKeys | None, total: int) -> float:
    """Return the bytes per second that a client receives."""
    seeds = np.arange(2000)[None]
    with graph_server(root, keys) as (servers, address):
        options = {"buffer_bytes": 512 << 20, "concurrency": 4}
        client = Client(servers, address, spec, "stream", **options)
        while client.batches < 3:
            pump_all([client], seeds)
        began, before = time.perf_counter(), client.bytes
        while client.bytes - before < total:
            pump_all([client], seeds)
        rate = (client.bytes - before) / (time.perf_counter() - began)
        client.connection.close()
    return rate


def bare_rate(keys: JobKeys | None, total: int) -> float:
    """Return the bytes per second from a ROUTER to a DEALER, with eight messages in flight."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    if keys is not None:
        curve_of(server, client, keys)
    port = server.bind_to_random_port("tcp://127.0.0.1")
    client.connect(f"tcp://127.0.0.1:{port}")
    payload, count = np.zeros(CHUNK, np.uint8), total // CHUNK

    def serve() -> None:
        for _ in range(count):
            peer, _ = server.recv_multipart()
            server.send_multipart([peer, b"head", payload], copy=False)

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in range(8):
        client.send(b"next")
    client.recv_multipart(copy=False)
    began = time.perf_counter()
    for i in range(1, count):
        if i + 7 < count:
            client.send(b"next")
        client.recv_multipart(copy=False)
    rate = (count - 1) * CHUNK / (time.perf_counter() - began)
    thread.join()
    for each in (server, client):
        each.close(0)
    context.term()
    return rate


def curve_of(server: Any, client: Any, keys: JobKeys) -> None:
    """Set the keys of a job on two sockets."""
    credentials: KeyPair = keys.for_client().credentials()
    server.curve_server = True
    server.curve_publickey = keys.server.public.encode()
    server.curve_secretkey = keys.server.secret.encode()
    client.curve_serverkey = keys.server.public.encode()
    client.curve_publickey = credentials.public.encode()
    client.curve_secretkey = credentials.secret.encode()


def main() -> int:
    """Run the case that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", choices=["overhead", "checks", "clients", "curve"])
    parser.add_argument("--scale", type=float, default=0.05)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--megabytes", type=int, default=1000)
    arguments = parser.parse_args()
    run_of = {"overhead": overhead, "checks": checks, "clients": clients, "curve": curve}
    run_of[arguments.case](arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
