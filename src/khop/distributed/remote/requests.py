"""What a client may ask a graph server for by name.

A server runs no code that a client sends it. Functions that scripts for other systems pass are
taken for the request that answers the same question.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch

from khop.distributed.remote.client import require_client
from khop.distributed.remote.connection import Reply


def _json(reply: Reply) -> Any:
    return json.loads(reply[1][0].tobytes())


def _without_id(reply: Reply) -> Any:
    return {name: value for name, value in reply[0].items() if name != "id"}


_REQUESTS: dict[str, Callable[[Reply], Any]] = {
    "device_count": lambda reply: int(reply[1][0][0]),
    "graph": _json,
    "ping": _without_id,
    "statistics": lambda reply: reply[0]["statistics"],
}
_FUNCTIONS: dict[Any, str] = {torch.cuda.device_count: "device_count"}


def request_server(server_rank: int, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Asks a graph server and waits for its answer.

    Args:
        server_rank: which server.
        func: the name of a request: 'device_count' (CUDA devices of its machine), 'graph' (what it
            serves), 'ping' (its rank and incarnation) or 'statistics' (what it has counted); or
            `torch.cuda.device_count` for the first.
        *args: requests have no arguments; accepted so that the error can say so.
        **kwargs: likewise.

    Returns:
        An integer, or a dictionary.

    Raises:
        TypeError, ValueError: no request by that name, or arguments; lists those that there are.
        PartitionUnavailableError: the server does not answer.
        RuntimeError: this process is no client.
    """
    future, read = _submit(server_rank, func, args, kwargs)
    return read(future.result())


def async_request_server(
    server_rank: int, func: Any, *args: Any, **kwargs: Any
) -> torch.futures.Future[Any]:
    """Asks a graph server without waiting; see `request_server`.

    Returns:
        A future; `wait()` returns the answer, or raises what `request_server` would.
    """
    submitted, read = _submit(server_rank, func, args, kwargs)
    answer: torch.futures.Future[Any] = torch.futures.Future()

    def pass_on(done: Future[Reply]) -> None:
        try:
            answer.set_result(read(done.result()))
        except Exception as error:
            answer.set_exception(error)

    submitted.add_done_callback(pass_on)
    return answer


def _submit(
    server_rank: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Future[Reply], Callable[[Reply], Any]]:
    context = require_client()
    name = _name_of(func)
    if args or kwargs:
        raise TypeError(f"request '{name}' takes no arguments (got {args} and {kwargs})")
    if isinstance(server_rank, bool) or not isinstance(server_rank, int):
        raise TypeError(f"server_rank must be an integer (got {server_rank!r})")
    if not 0 <= server_rank < context.num_servers():
        raise ValueError(
            f"server_rank {server_rank} is not one of {context.num_servers()} servers (0 to "
            f"{context.num_servers() - 1})"
        )
    return context.remote.submit(server_rank, name), _REQUESTS[name]


def _name_of(func: Any) -> str:
    name = (
        func
        if isinstance(func, str)
        else next((n for f, n in _FUNCTIONS.items() if f is func), None)
    )
    if name in _REQUESTS:
        return str(name)
    raise (ValueError if isinstance(func, str) else TypeError)(
        f"graph servers answer requests by name and run no code of clients: func must be one of "
        f"{sorted(_REQUESTS)}, or torch.cuda.device_count (got {func!r})"
    )
