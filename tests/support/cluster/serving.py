"""Graph servers in processes, and a client that speaks their protocol without any loader."""

import contextlib
import json
import os
import time

import numpy as np
import zmq

from khop.channel.control import Op
from khop.channel.layout import Layout, read_record
from khop.channel.message import pack
from khop.distributed.processes.child import ChildProcess, wait_for_message
from khop.distributed.processes.socket_files import remove_socket
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import RegisterClient, Statistics, read_json
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.protocol import PROTOCOL
from support.cluster import jobs

PROGRAM = "khop.distributed.remote.server.main"


class Graph:
    """Graph servers of a folder, by rank, which a test starts and kills."""

    def __init__(self, root, num_servers, keys=None, **config):
        self.master = f"127.0.0.1:{jobs.free_port()}"
        self.keys = keys
        self.config = {
            "root": str(root),
            "num_servers": num_servers,
            "num_clients": 0,
            "master": self.master,
            "keys": None if keys is None else keys.for_servers().to_json(),
            **config,
        }
        self.processes = {}
        self.addresses = {}

    @property
    def servers(self):
        """Address by which clients find the servers."""
        if self.keys is None:
            return Servers(self.master)
        keys = self.keys.for_client(next(iter(self.keys.clients)))
        return Servers(self.master, keys.server_key, keys.credentials())

    def start(self, rank, descriptors=(), **config):
        """Start a server and return its addresses. Closes the descriptors that it passes along."""
        process = ChildProcess(PROGRAM, {**self.config, "rank": rank, **config}, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self.processes[rank] = process
        message = wait_for_message(process.line)
        assert message is not None, f"server {rank} {process.exit_status()}"
        assert message.op is Op.READY, message.payload
        self.addresses[rank] = message.json()["addresses"]
        return self.addresses[rank]

    def kill(self, rank):
        """Kill a server with SIGKILL."""
        os.kill(self.processes[rank].pid, 9)
        self.end(rank)
        # As whoever has started it does: it could not.
        remove_socket(self.addresses[rank]["ipc"].removeprefix("ipc://"))

    def end(self, rank):
        """End a server as its parent does."""
        self.processes.pop(rank).close()


@contextlib.contextmanager
def serving(root, started=1, keys=None, **config):
    """Yield graph servers that end with the block."""
    graph = Graph(root, config.pop("num_servers", started), keys, **config)
    try:
        for rank in range(started):
            graph.start(rank)
        yield graph
    finally:
        for rank in list(graph.processes):
            graph.end(rank)


@contextlib.contextmanager
def client_of(graph, rank=None, num_clients=0, **options):
    """Yield a client of the servers. With a rank, it registers."""
    registration = None
    if rank is not None:
        num_servers = graph.config["num_servers"]

        def registration(secret):
            name = f"client {rank}"
            return RegisterClient(rank, secret, num_servers, num_clients, name, os.getpid())

    client = DirectoryClient(graph.servers, registration, **{"timeout": 20.0, **options})
    try:
        yield client
    finally:
        client.close()


def sessions(client, rank=0):
    """Return the sessions that clients have open on a server."""
    return statistics(client, rank)["sessions"]


def statistics(client, rank=0):
    """Return a server's counters."""
    return read_json(client.request(rank, Statistics()).arrays, f"graph server {rank}")


def wait_until(condition, seconds=15.0):
    """Wait until a condition is true. AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)
    return found


class RawSession:
    """A client's session on a server, frame by frame."""

    def __init__(self, context, endpoint, pipeline, name="raw", credentials=None, **options):
        self.name = name
        self.link = Connection(context, credentials, endpoint)
        self.options = {
            "client": name,
            "pipeline": pipeline,
            "num_workers": 1,
            "buffer_bytes": 1 << 24,
            "concurrency": 2,
            "depth": 64,
            "max_restarts": 3,
            "timeout": 30.0,
            "worker_devices": None,
            "secret": f"secret of {name}",
            "session": name,
            "credits": 8 << 20,
            "outstanding": [],
            "names": [],
            **options,
        }
        self.layouts = {}
        self.arrived = {}
        self.done = {}
        self.order = []
        self.failed = {}
        self.replies = []
        self.bytes = 0

    def send(self, op, arrays=(), **header):
        """Send a message of this session."""
        common = {"op": op, "protocol": PROTOCOL, "id": 1}
        if op != "open":
            common["session"] = self.name
        self.link.send(pack({**common, **header}, list(arrays)))

    def open(self):
        """Connect and open the session. Return the reply."""
        end = time.monotonic() + 10
        while not self.link.pump() and not self.link.is_up:
            self.wait(end)
        self.send("open", **self.opening())
        return self.reply()

    def opening(self):
        """Return the fields of the request that opens the session."""
        spec = dict(self.options)
        return {name: spec.pop(name) for name in ("outstanding", "names")} | {"spec": spec}

    def reply(self):
        """Return the next message that is no event."""
        end = time.monotonic() + 10
        while not self.replies:
            self.wait(end)
            self.take(acknowledge=True)
        return self.replies.pop(0)

    def wait(self, end):
        """Sleep until a message has arrived, or until the time `end`."""
        assert time.monotonic() < end, self.link.state()
        poller = zmq.Poller()
        for socket in self.link.sockets:
            poller.register(socket, zmq.POLLIN)
        poller.poll(100)

    def ask(self, number, seeds, run_key=7, batch=None, ahead=False):
        """Request a batch of these seeds, by their ids in the folder's numbering.

        With `ahead`, it is only drawn.
        """
        columns = np.atleast_2d(np.asarray(seeds, np.int64))
        batch = number if batch is None else batch
        fields = {"batch_id": number, "batch": batch, "run_key": run_key, "ahead": ahead}
        self.send("batch", [columns], **fields)

    def take(self, acknowledge):
        """Process the messages that have arrived."""
        self.link.pump()
        for header, arrays, _ in self.link.receive():
            event = header.get("event")
            if event == "layout":
                layout = Layout.from_json(json.loads(bytes(arrays[0].data)))
                self.layouts[layout.id] = layout
            elif event == "chunk":
                self._take_chunk(header, arrays[0], acknowledge)
            elif event == "failed":
                self.failed[header["batch_id"]] = header["error"]
            else:
                self.replies.append(header)

    def _take_chunk(self, header, chunk, acknowledge):
        number = header["batch_id"]
        self.bytes += len(chunk)
        raw = self.arrived.setdefault(number, np.empty(header["nbytes"], np.uint8))
        raw[header["offset"] : header["offset"] + len(chunk)] = chunk
        if acknowledge:
            self.send("ack", bytes=max(len(chunk), 4096))
        if header["offset"] + len(chunk) == header["nbytes"]:
            raw[:8] = np.array([header["layout"]]).view(np.uint8)
            self.done[number] = read_record(self.arrived.pop(number), self.layouts)
            self.order.append(number)

    def finish(self, count, seconds=30.0, acknowledge=True):
        """Wait until this number of batches have arrived or failed."""
        end = time.monotonic() + seconds
        while len(self.done) + len(self.failed) < count:
            self.wait(end)
            self.take(acknowledge)

    def close(self):
        """Disconnect without ending the session."""
        self.link.close()


@contextlib.contextmanager
def raw_session(graph, pipeline, rank=0, **options):
    """Yield an open `RawSession` with a server, over its TCP socket."""
    context = zmq.Context()
    address = graph.addresses[rank]["tcp"]
    keys = graph.keys
    endpoint = Endpoint(address, None if keys is None else keys.server.public)
    first = None if keys is None else keys.for_client(next(iter(keys.clients))).credentials()
    credentials = options.pop("credentials", first)
    session = RawSession(context, endpoint, pipeline, credentials=credentials, **options)
    try:
        yield session
    finally:
        session.close()
        context.destroy(0)
