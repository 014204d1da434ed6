"""Requests of a client to a graph server, by name. Runs in trainers.

A server runs no code of clients. Functions that scripts for other systems pass are replaced by the
request that returns the same.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from khop import codec
from khop.distributed.remote.client.client_context import require_client
from khop.distributed.remote.encoding import read_text
from khop.distributed.remote.graph_messages import DescribeGraph, DeviceCount, Ping, Statistics
from khop.distributed.remote.server_client import Reply
from khop.errors import ProtocolError

_Read = Callable[[Reply, str], Any]
"""Function of a server's reply and the server's name, for messages; returns the result."""


def _json(reply: Reply, where: str) -> Any:
    return read_text(reply.arrays, where)


def _count(reply: Reply, where: str) -> int:
    arrays = reply.arrays
    fits = len(arrays) == 1 and arrays[0].dtype == np.int64 and arrays[0].shape == (1,)
    if not fits or arrays[0][0] < 0:
        raise ProtocolError(f"{where} did not say how many devices its machine has")
    return int(arrays[0][0])


_REQUESTS: dict[str, tuple[Any, _Read]] = {
    "device_count": (DeviceCount(), _count),
    "graph": (DescribeGraph(), _json),
    "ping": (Ping(), lambda reply, where: codec.to_json(reply.fields)),
    "statistics": (Statistics(), _json),
}
_FUNCTIONS: dict[Any, str] = {torch.cuda.device_count: "device_count"}


def request_server(server_rank: int, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Send a request to a graph server and wait for its reply.

    Args:
        server_rank: rank of the server.
        func: name of a request: 'device_count' (CUDA devices of its machine), 'graph' (description
            of the graph that it serves), 'ping' (its rank) or 'statistics' (its counters); or
            `torch.cuda.device_count` for the first.
        *args: requests have no arguments; accepted for the error message.
        **kwargs: likewise.

    Returns:
        An integer, or a dictionary.

    Raises:
        TypeError, ValueError: no such request, with a list of those that exist; or arguments.
        PartitionUnavailableError: the server does not answer.
        RuntimeError: this process is no client.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> request_server(0, "ping")["rank"]
        0
    """
    future, read = _submit(server_rank, func, args, kwargs)
    return read(future.result(), _name_of_server(server_rank))


def async_request_server(
    server_rank: int, func: Any, *args: Any, **kwargs: Any
) -> torch.futures.Future[Any]:
    """Send a request to a graph server without waiting; arguments as of `request_server`.

    Args:
        server_rank: rank of the server.
        func: name of a request.
        *args: requests have no arguments.
        **kwargs: likewise.

    Returns:
        A future; `wait()` returns the result, or raises the errors of `request_server`.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> future = async_request_server(0, "ping")
        >>> future.wait()["rank"]
        0
    """
    submitted, read = _submit(server_rank, func, args, kwargs)
    where = _name_of_server(server_rank)
    answer: torch.futures.Future[Any] = torch.futures.Future()

    def pass_on(done: Future[Reply]) -> None:
        try:
            answer.set_result(read(done.result(), where))
        except Exception as error:
            answer.set_exception(error)

    submitted.add_done_callback(pass_on)
    return answer


def _submit(
    server_rank: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Future[Reply], _Read]:
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
    request, read = _REQUESTS[name]
    return context.remote.submit(server_rank, request), read


def _name_of_server(rank: int) -> str:
    return require_client().remote.name_of(rank)


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
