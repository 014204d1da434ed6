"""Requests of a client to a graph server, by name. Runs in trainers.

A server runs no code of clients. If a script for another system passes a function, the request that
returns the same value takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

import numpy as np
import torch

from khop import codec
from khop.distributed.remote.addresses import check_rank
from khop.distributed.remote.client.client_context import require_client
from khop.distributed.remote.messages import (
    DescribeGraph,
    DeviceCount,
    GraphServerRequest,
    Ping,
    Statistics,
    read_json,
)
from khop.distributed.remote.server_client import Reply
from khop.errors import ProtocolError

_Read: TypeAlias = Callable[[Reply, str], Any]
"""Function of a server's reply and the server's name (for messages) that returns the result."""


def _json(reply: Reply, where: str) -> Any:
    return read_json(reply.arrays, where)


def _count(reply: Reply, where: str) -> int:
    arrays = reply.arrays
    fits = len(arrays) == 1 and arrays[0].dtype == np.int64 and arrays[0].shape == (1,)
    if not fits or arrays[0][0] < 0:
        raise ProtocolError(f"{where} sent a malformed number of its machine's devices")
    return int(arrays[0][0])


_REQUESTS: dict[str, tuple[GraphServerRequest, _Read]] = {
    "device_count": (DeviceCount(), _count),
    "graph": (DescribeGraph(), _json),
    "ping": (Ping(), lambda reply, where: codec.to_json(reply.fields)),
    "statistics": (Statistics(), _json),
}


def request_server(
    server_rank: int, func: str | Callable[[], int], *args: object, **kwargs: object
) -> Any:
    """Send a request to a graph server and wait for its reply.

    Args:
        server_rank: rank of the server.
        func: name of a request. 'device_count' returns the number of CUDA devices of its machine.
            `torch.cuda.device_count` is accepted in its place. 'graph' returns a description of the
            server's graph, 'ping' its rank, 'statistics' its counters.
        *args: must be empty: requests have no arguments. Accepted for the error message.
        **kwargs: must be empty, too.

    Returns:
        An integer, or a dictionary.

    Raises:
        TypeError, ValueError: there is no such request or server, or arguments were passed.
        PartitionUnavailableError: the server does not answer.
        RuntimeError: this process is no client.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> request_server(0, "ping")["rank"]
        0
    """
    future, read = _submit(server_rank, func, args, kwargs)
    return read(future.result(), require_client().remote.name_of(server_rank))


def async_request_server(
    server_rank: int, func: str | Callable[[], int], *args: object, **kwargs: object
) -> torch.futures.Future[Any]:
    """Send a request to the graph server of rank `server_rank` without waiting.

    `func` is 'device_count' (or `torch.cuda.device_count`), 'graph', 'ping' or 'statistics', as for
    `request_server`. `args` and `kwargs` must be empty.

    Returns:
        A future, whose `wait()` returns the result, or raises the errors of `request_server`.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> future = async_request_server(0, "ping")
        >>> future.wait()["rank"]
        0
    """
    submitted, read = _submit(server_rank, func, args, kwargs)
    where = require_client().remote.name_of(server_rank)
    answer: torch.futures.Future[Any] = torch.futures.Future()

    def pass_on(done: Future[Reply]) -> None:
        try:
            answer.set_result(read(done.result(), where))
        except Exception as error:
            answer.set_exception(error)

    submitted.add_done_callback(pass_on)
    return answer


def _submit(
    server_rank: int, func: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Future[Reply], _Read]:
    context = require_client()
    name = "device_count" if func is torch.cuda.device_count else func
    if not isinstance(name, str) or name not in _REQUESTS:
        raise (ValueError if isinstance(name, str) else TypeError)(
            f"graph servers answer requests by name and run no code of clients: func must be one "
            f"of {sorted(_REQUESTS)}, or torch.cuda.device_count (got {func!r})"
        )
    if args or kwargs:
        raise TypeError(f"request '{name}' takes no arguments (got {args} and {kwargs})")
    check_rank(context.num_servers(), 0, "server", server_rank)
    request, read = _REQUESTS[name]
    return context.remote.submit(server_rank, request), read
