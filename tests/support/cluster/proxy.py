"""TCP proxy that drops bytes or cuts connections, for tests."""

import contextlib
import random
import socket
import struct
import threading
import time

_RESET_WHEN_CLOSED = struct.pack("ii", 1, 0)


class Proxy:
    """A proxy of a loopback port, as a context manager.

    Args:
        port: the port, or a function that returns it when a connection comes.

    Attributes:
        address: its own address.
        cuts: number of connections that it has cut.
    """

    def __init__(self, port):
        self._port = port if callable(port) else lambda: port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections = []
        self._muted = set()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end(self._listener)
        self.cut()

    def mute(self, requests=True, replies=True):
        """Drop from now on the bytes of open connections. Later connections are forwarded."""
        for near, far in list(self._connections):
            self._muted |= {near} if requests else set()
            self._muted |= {far} if replies else set()

    def cut(self):
        """End all connections at once, also in the middle of a message."""
        pairs, self._connections = self._connections, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_WHEN_CLOSED)
                self._end(end)
        self.cuts += len(pairs)
        self._muted.clear()

    def cut_somehow(self, generator: random.Random):
        """Cut all connections, perhaps after dropping requests or replies for some milliseconds."""
        how = generator.choice(["at once", "requests", "replies", "both"])
        if how != "at once":
            self.mute(how != "replies", how != "requests")
            time.sleep(generator.uniform(0, 0.02))
        self.cut()

    def wait_for_connection(self, seconds=10.0):
        """Wait until a connection is open."""
        end = time.monotonic() + seconds
        while not self._connections:
            assert time.monotonic() < end, "nobody connects"
            time.sleep(0.001)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._port()))
                except OSError:
                    near.close()
                    continue
                self._connections.append((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source not in self._muted:
                    target.sendall(data)
        for end in (source, target):
            self._end(end)

    @staticmethod
    def _end(end):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
