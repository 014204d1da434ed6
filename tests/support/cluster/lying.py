"""A graph server with directory that sends whatever a test wants, over real sockets."""

import contextlib
import json
import socket
import threading
import time

import numpy as np
import zmq

from khop.channel.message import pack, unpack
from khop.data.steps import run
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.messages import json_array
from khop.distributed.remote.server.graph_handler import GraphRequestHandler
from khop.distributed.sampling.pipeline import Pipeline
from khop.partition import PartitionFolder
from khop.storage.part import Part

CHUNK = 1 << 20


class ScriptedServer:
    """Server that answers as a graph server of one part, except for what a test changes.

    Args:
        root: the partition folder.
        spec: specification of the batches that it makes. If None, it makes none.
        others: {rank: port} of further servers that its directory lists.

    Attributes:
        change: called with the name of a request and the messages [(header, arrays)] that would
            answer it. Returns the messages to send.
        asked: names of the requests that have arrived, and when.
    """

    keys = None

    def __init__(self, root, spec=None, others=None):
        folder = PartitionFolder(root)
        self.config = {"root": str(root), "num_servers": 1 + len(others or {})}
        self.change = lambda op, messages: messages
        self.asked = []
        self.layout = None
        self._graph = GraphRequestHandler(folder, folder.meta, 0, [0])
        self._num_parts, self._fingerprint = folder.meta.num_parts, folder.fingerprint
        self._pipeline = None if spec is None else Pipeline(Part(folder, 0), spec, None)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.master = f"127.0.0.1:{self.port}"
        self._ports = {0: self.port, **(others or {})}
        self._ours, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def servers(self):
        """Address by which clients find the server."""
        return Servers(self.master)

    def count(self, op):
        """Return how many requests of the name `op` have arrived."""
        return sum(name == op for name, _ in self.asked)

    def _serve(self):
        poller = zmq.Poller()
        for source in (self._socket, self._theirs.fileno()):
            poller.register(source, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._theirs.fileno() in ready:
                return
            peer, *frames = self._socket.recv_multipart()
            if frames == [b""]:
                continue  # a greeting
            header, arrays = unpack(frames)
            self.asked.append((header["op"], time.monotonic()))
            for message in self.change(header["op"], self._answer(header, arrays, frames)):
                frames = message if isinstance(message, list) else pack(*message)
                self._socket.send_multipart([peer, *frames])

    def _answer(self, header, arrays, frames):
        op, session = header["op"], header.get("session")
        if op in ("lookup", "register_client"):
            return [({"id": header["id"]}, [json_array(self.table())])]
        if op == "batch":
            return self._batch(session, header, arrays[0])
        if op == "alive":
            said = {"session": session, "made": 0, "waiting_for": None}
            return [({"id": header["id"], **said}, [])]
        if op == "open":
            return [({"id": header["id"], "held": []}, [])]
        if op in ("cancel", "ack"):
            return []
        if op in ("close", "goodbye"):
            return [({"id": header["id"]}, [])]
        if op == "ping":
            return [({"id": header["id"], "rank": 0}, [])]
        return [unpack(self._graph(frames))]

    def table(self):
        """Return the directory's table of servers and clients."""
        servers = {
            str(rank): {
                "incarnation": f"{rank}" * 32,
                "parts": list(range(self._num_parts)),
                "addresses": {"tcp": f"tcp://127.0.0.1:{port}", "ipc": None},
                "host": "here",
                "pid": 7,
                "silent": 0.0,
            }
            for rank, port in self._ports.items()
        }
        return {
            "directory": "d" * 32,
            "num_servers": len(servers),
            "num_clients": 0,
            "num_parts": self._num_parts,
            "fingerprint": self._fingerprint,
            "servers": servers,
        }

    def _batch(self, session, header, columns):
        made = {}

        def allocate(record):
            made["memory"] = bytearray(record.nbytes)
            return record.write(memoryview(made["memory"]))

        steps = self._pipeline.make(columns, header["run_key"], header["batch"], allocate)
        self.layout = run(steps, None).layout
        content = json.loads(json.dumps(self.layout.to_json()))
        layout = {"event": "layout", "session": session, "layout": 0}
        messages = [(layout, [json_array(content)])]
        raw = np.frombuffer(made["memory"], np.uint8)
        for begin in range(0, len(raw), CHUNK):
            chunk = {
                "event": "chunk",
                "session": session,
                "batch_id": header["batch_id"],
                "offset": begin,
                "nbytes": len(raw),
                "layout": 0,
                "extras": None,
            }
            messages.append((chunk, [raw[begin : begin + CHUNK]]))
        return messages

    def close(self):
        """End the server."""
        self._ours.send(b"x")
        self._thread.join(10)
        self._context.destroy(0)
        self._ours.close()
        self._theirs.close()


@contextlib.contextmanager
def scripted(root, spec=None, **options):
    """Yield a `ScriptedServer`, which ends with the block."""
    server = ScriptedServer(root, spec, **options)
    try:
        yield server
    finally:
        server.close()


def contents(server, messages):
    """Return {name: array}, writable, of the batch in `messages`, and its counters by name."""
    raw = messages[-1][1][0]
    received = server.layout.read(raw)
    arrays = {name: array for name, (array, _) in received.named().items()}
    numbers = raw[16 : 16 + 8 * server.layout.num_numbers].view("int64")
    return arrays, {name: numbers[place] for name, place in server.layout.slices.items()}


def malformed_frames():
    """Return frames that are no valid messages."""
    return [[b"[]"], [b"\xff\xff"], [b"[" * 985 + b"]" * 985], [b'{"arrays": 3}'], [b""], []]
