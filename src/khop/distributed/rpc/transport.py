"""Transports: what carries messages between samplers and the partition servers of other trainers.

A transport carries whole messages (lists of frames) over a connection, and knows when it is lost.
The layers above are the same for all transports: requests, deadlines, sending again after a
reconnection (`partition_client`, `connection`, `partition_server`). khop's own transport is ZeroMQ,
for addresses 'tcp://' and 'ipc://' (`connection`, `server_sockets`). A user's own transport has
another scheme. The user names it in the environment variable KHOP_TRANSPORT, which samplers and
servers inherit. Servers then listen for both transports. Addresses with other schemes are never
used, even if a peer sends one. Imports no torch.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

from khop.channel.message import FRAME_BYTES, MESSAGE_BYTES
from khop.distributed.rpc.limits import ENVELOPE_BYTES
from khop.plugins import Registry, instance_of

VARIABLE = "KHOP_TRANSPORT"
"""Environment variable with which a user names a transport."""

# Schemes of ZeroMQ.
_TAKEN = ("tcp", "ipc", "inproc")
_SCHEME = re.compile(r"[a-z][a-z0-9+-]{0,31}")

UP, LOST, REFUSED, REFUSED_KEY = "up", "lost", "refused", "refused-key"
"""Events of a channel."""


Buffer: TypeAlias = "bytes | bytearray | memoryview"
"""Memory of a frame."""


class _Descriptor(Protocol):
    def fileno(self) -> int: ...
    def close(self) -> object: ...


class _End:
    """Base of `Channel` and `Acceptor`: objects with a descriptor to poll, which can be closed.

    Attributes:
        end: object with `fileno` and `close`, such as a socket. Without it, override both methods.
    """

    end: _Descriptor

    def fileno(self) -> int:
        """Return a descriptor that is readable when a message, a client or an error has come."""
        return self.end.fileno()

    def close(self) -> None:
        """Close `end`. A second call does nothing."""
        self.end.close()


class Channel(_End, ABC):
    """A connection between a client and a server, over which whole messages go. For one thread.

    A new channel is connected already. When it is lost, the client makes another one. Its methods
    `fileno` and `close` call the methods of `end`, a socket for example. Subclasses may override.

    Example:
        >>> sorted(Channel.__abstractmethods__), Channel.MOST_FRAME_BYTES >= 2**20
        (['receive', 'send'], True)
    """

    MOST_FRAME_BYTES: ClassVar[int] = max(FRAME_BYTES, ENVELOPE_BYTES)
    """Bytes of the largest frame of a message. Refuse larger frames before memory is taken."""
    MOST_BYTES: ClassVar[int] = MESSAGE_BYTES + ENVELOPE_BYTES
    """Bytes of the largest message, all frames together."""

    _has_begun = False

    @abstractmethod
    def send(self, frames: Sequence[bytes | bytearray | memoryview]) -> None:
        """Send a message without waiting. Drop it if the connection is lost.

        Args:
            frames: memory that does not change afterwards.

        Raises:
            OSError: the connection is lost, or its peer does not read.
        """

    @abstractmethod
    def receive(self) -> Sequence[bytes | bytearray | memoryview] | None:
        """Return the frames of the next message. None if there is none yet.

        Raises:
            OSError: the connection is lost, or the peer's bytes are not messages.
        """

    def sockets(self) -> list[Any]:
        """Return the objects to poll before `events` and `receive`.

        :meta private:
        """
        return [self]

    def events(self) -> Iterator[str]:
        """Yield the events since the last call. Most channels have one, UP at the first call.

        :meta private:
        """
        if not self._has_begun:
            self._has_begun = True
            yield UP

    def finish(self, seconds: float) -> None:
        """Let messages that were sent leave even after `close`, for at most `seconds`.

        :meta private:
        """


class Acceptor(_End, ABC):
    """The end of a transport at a server, at which clients connect. For one thread.

    It must admit the clients of this job alone. For `fileno` and `close`, see `Channel`.

    Attributes:
        address: address to connect to, which begins with the transport's scheme.

    Example:
        >>> sorted(Acceptor.__abstractmethods__)
        ['accept']
    """

    address: str

    @abstractmethod
    def accept(self) -> Channel:
        """Return the connection of the next client.

        Raises:
            OSError: no client waits, or the client has disconnected.
        """


class Transport(ABC):
    """Base of transports. khop makes an instance without arguments.

    Users name their own in the environment variable KHOP_TRANSPORT, for all processes of a job: by
    'package:Class', or by the name that an installed package gives it (group `khop.transports`).

    Attributes:
        scheme: beginning of the transport's addresses, before '://'.
        reaches_other_machines: True if other machines can connect to its addresses. The transport
            itself must then refuse strangers.

    Example:
        >>> class Rdma(Transport):
        ...     scheme = "rdma"
        >>> sorted(Rdma.__abstractmethods__)
        ['connect', 'listen']
    """

    scheme: ClassVar[str]
    reaches_other_machines: ClassVar[bool] = False

    @abstractmethod
    def listen(self, path: str | None, host: str | None) -> Acceptor | None:
        """Listen for the clients of a partition server.

        Args:
            path: path for a socket file, which does not exist yet, in a folder that only this user
                can enter. If None, no process of this machine needs the server.
            host: address at which other machines reach this one. If None, none needs the server.

        Returns:
            The acceptor. None if these clients do not use this transport.

        Raises:
            OSError: the transport cannot listen.
        """

    @abstractmethod
    def connect(self, address: str) -> Channel:
        """Connect to a server, without waiting for long.

        Args:
            address: `address` of the server's `Acceptor`, as its trainer has published it.

        Raises:
            OSError: the server cannot be reached.
        """


TRANSPORTS: Registry[Transport] = Registry(
    "khop.transports", {}, instance_of(Transport), "transport"
)
"""Users' transports, by name."""


def own_transport() -> Transport | None:
    """Return the transport that KHOP_TRANSPORT names. None if it is not set.

    Raises:
        ValueError, TypeError, PluginError: there is no such transport, or it cannot be used.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    own = TRANSPORTS.resolve(name)
    scheme = getattr(own, "scheme", None)
    if not isinstance(scheme, str) or not _SCHEME.fullmatch(scheme) or scheme in _TAKEN:
        raise TypeError(
            f"{type(own).__qualname__}.scheme must be a word of small letters and digits that is "
            f"none of {', '.join(_TAKEN)} (got {scheme!r:.80})"
        )
    return own


def transport_of(address: object) -> Transport | None:
    """Return the user's transport (KHOP_TRANSPORT) if `address` has its scheme, else None."""
    own = own_transport()
    if own is None or not isinstance(address, str):
        return None
    return own if address.startswith(f"{own.scheme}://") else None
