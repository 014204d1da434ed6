"""Handler of requests that write and read the state of a part's primary. Imports no torch.

Partition servers and graph servers run it, in one thread a part, so state needs no lock. A write is
applied once, however often it arrives (`write_windows`). Each request names the incarnation of the
server that it means: a server that was started again has lost its state, and refuses requests for
the earlier one with StateLostError.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from khop import codec
from khop.distributed.rpc.frame_handler import FrameHandler, RequestType, Steps
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.protocol import Enroll, StateEnvelope, check_empty
from khop.distributed.rpc.request_threads import RequestThreads
from khop.distributed.rpc.server_sockets import ServerSockets
from khop.distributed.rpc.write_windows import WriteWindows
from khop.errors import StateLostError
from khop.storage.part import Part
from khop.typing import Array


class StateHandler(FrameHandler):
    """Handler of the requests of classes `write` and `read_state` for one part.

    Args:
        part: number of the part.
        types: the requests.
        incarnation: incarnation of the server.

    Attributes:
        moved: reason for which this server is not the part's primary. If None, it is. Any thread.
    """

    def __init__(self, part: int, types: Sequence[RequestType], incarnation: str) -> None:
        enroll = RequestType(Enroll, "read_state", self._no_answer, carries=0, arrays=0)
        super().__init__("partition", part, [enroll, *types], incarnation)
        self._windows = WriteWindows()
        self.moved: str | None = None

    def _no_answer(self, request: Any, arrays: list[Array]) -> list[Array]:
        """Answer an `Enroll`, for which `_answer` has made a window."""
        check_empty(arrays)
        return []

    def _answer(
        self,
        kind: RequestType,
        request: Any,
        arrays: list[Array],
        header: Mapping[str, Any],
        source: Source,
    ) -> list[Array] | Steps:
        if self.moved is not None:
            raise StateLostError(self.moved)
        if isinstance(request, Enroll):
            self._windows.enroll(request.client, source)
            return kind.answer(request, arrays)
        envelope = codec.from_json(StateEnvelope, header.get("state"), "a request's state")
        if envelope.incarnation != self.incarnation:
            raise StateLostError(
                f"the server of partition {self._number} has been started again and has lost its "
                "state"
            )
        if kind.access == "read_state":
            return kind.answer(request, arrays)
        write = self._windows.admit(envelope, source, lambda: kind.answer(request, arrays))
        return write.steps()


class WriterThread(RequestThreads):
    """The thread that applies the writes to a part, and reads its state.

    Args:
        state: handler of the requests.
        sockets: sockets of the server.

    Attributes:
        state: the handler.
    """

    def __init__(self, state: StateHandler, sockets: ServerSockets) -> None:
        super().__init__(state, 1, sockets.limits, sockets.backlog.of, completes=True)
        self.state = state

    def handles(self, op: str) -> bool:
        """Return whether requests of this name are processed here."""
        return op in self.state.names


def users_requests(modules: Sequence[str], part: Part) -> list[RequestType]:
    """Return the requests that a user's modules add to those to a part.

    Called by a server's process with the modules that whoever starts the server has named; no
    message names one.

    Args:
        modules: names of modules with a function `request_types(part)`, which returns a list of
            `RequestType`. It is called once, and what its functions share is the part's state.
        part: the part.

    Raises:
        ValueError: a module has no such function, or two requests have the same name.
        ImportError: a module is not found.
    """
    types: list[RequestType] = []
    for name in modules:
        module = importlib.import_module(name)
        make = getattr(module, "request_types", None)
        if make is None:
            raise ValueError(f"requests: the module '{name}' has no function request_types(part)")
        types += make(part)
    names = [kind.message.op for kind in types]
    if len(set(names)) < len(names):
        raise ValueError(f"requests: {sorted(names)} are not all different")
    return types
