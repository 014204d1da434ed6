"""Admission of CURVE keys to a server's socket (ZeroMQ's ZAP). Imports no torch.

Servers run it. ZeroMQ asks once in each handshake, over a socket in the process, with the key that
the peer has proved to have; see https://rfc.zeromq.org/spec/27. pyzmq has a thread for it as well,
which imports asyncio: a fifth of the time that a server takes to start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import zmq
from zmq.utils import z85

ADMITTED, LATER, REFUSED = b"200", b"300", b"400"
"""Answers. After LATER the connection ends, and the peer may try again."""

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
# version, request id, domain, address, routing id, mechanism, key
_FRAMES = 7


class KeyGate:
    """Thread that answers whether a key is admitted. Ends with the context.

    Args:
        context: context of the sockets.
        decide: returns an answer to a key, Z85 text; called in the thread.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], decide: Callable[[str], bytes]
    ) -> None:
        self._decide = decide
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ADDRESS)
        threading.Thread(target=self._run, name="khop-keys", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close(0)

    def _answer(self, request: list[bytes]) -> list[bytes]:
        """Return the answer to a request; messages of a connection have its key as `User-Id`."""
        number = request[1] if len(request) > 1 else b""
        if len(request) != _FRAMES or request[0] != _VERSION or request[5] != b"CURVE":
            return [_VERSION, number, REFUSED, b"", b"", b""]
        key = z85.encode(request[6]).decode()
        return [_VERSION, number, self._decide(key), b"", key.encode(), b""]
