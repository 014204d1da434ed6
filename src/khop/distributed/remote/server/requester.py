"""Sender of a request to a graph server's loop, which gets its replies. Run by graph servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from khop.distributed.rpc.frame_handler import pack_or_refuse
from khop.distributed.rpc.identity import Source
from khop.typing import Array


class Requester:
    """Sender of a request, which gets the replies.

    Args:
        source: connection and user of the sender.
        request_id: id of the request, chosen by the sender. If None, there was none.
        send_frames: sends frames; called with the two parts of `Source.connection`, and them.
    """

    __slots__ = ("_send_frames", "request_id", "source")

    def __init__(
        self,
        source: Source,
        request_id: int | None,
        send_frames: Callable[[int, bytes, Sequence[Any]], None],
    ) -> None:
        self.source = source
        self.request_id = request_id
        self._send_frames = send_frames

    def send(self, header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Send a message; dropped if the sender of the request has disconnected.

        A message larger than clients accept becomes an error.
        """
        self._send_frames(*self.source.connection, pack_or_refuse(header, arrays))
