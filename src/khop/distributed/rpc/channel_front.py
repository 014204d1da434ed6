"""Connections of clients over a user's own transport, as a server's loop sees them.

Partition servers run it, beside the sockets of ZeroMQ. What a channel does wrong ends that channel,
and no other. Imports no torch.
"""

from __future__ import annotations

import contextlib
import itertools
import select
from collections.abc import Sequence
from typing import Any

from khop import log
from khop.distributed.rpc.transport import Acceptor, Channel

# Events that one call looks at, so that who connects without end cannot hold a loop.
_EVENTS_AT_ONCE = 64
_log = log.get(__name__)


class ChannelFront:
    """The connections of an acceptor.

    Args:
        acceptor: where clients connect.
        most: most connections at a time; later ones are closed at once.
    """

    def __init__(self, acceptor: Acceptor, most: int) -> None:
        self._acceptor = acceptor
        self._most = most
        self._names: dict[int, bytes] = {}
        self._channels: dict[bytes, Channel] = {}
        self._count = itertools.count()
        self._epoll = select.epoll()
        self._epoll.register(acceptor.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `receive` has something to do."""
        return self._epoll.fileno()

    def receive(self) -> list[Any] | None:
        """Return the next message: the name of its peer, and frames; None if there is none."""
        for descriptor, _ in self._epoll.poll(0, _EVENTS_AT_ONCE):
            name = self._names.get(descriptor)
            if name is None:
                self._accept()
                continue
            try:
                frames = self._channels[name].receive()
            except Exception as error:  # of whatever kind: it is the transport's
                self._end(name, error)
                continue
            if frames is not None:
                return [name, *frames]
        return None

    def _accept(self) -> None:
        try:
            channel = self._acceptor.accept()
        except OSError:
            return
        if len(self._channels) >= self._most:
            channel.close()
            return
        name = b"own-%d" % next(self._count)
        self._names[channel.fileno()], self._channels[name] = name, channel
        self._epoll.register(channel.fileno(), select.EPOLLIN)

    def send(self, peer: bytes, frames: Sequence[Any]) -> None:
        """Send a message to a peer; dropped if its connection has ended."""
        channel = self._channels.get(peer)
        if channel is None:
            return
        try:
            channel.send(frames)
        except Exception as error:
            self._end(peer, error)

    def _end(self, name: bytes, error: Exception) -> None:
        channel = self._channels.pop(name)
        _log.debug("channel-ended", f"a client's connection has ended: {error!r}")
        self._names.pop(channel.fileno(), None)
        with contextlib.suppress(OSError):
            self._epoll.unregister(channel.fileno())
        channel.close()

    def close(self, _linger_ms: int = 0) -> None:
        """End all connections, and listening."""
        for channel in self._channels.values():
            channel.close()
        self._acceptor.close()
        self._epoll.close()
