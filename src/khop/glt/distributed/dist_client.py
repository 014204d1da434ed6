"""GLT's functions by which clients send requests to graph servers. Runs in trainers."""

from __future__ import annotations

import threading
from typing import Any

import torch

from khop import distributed as core
from khop.glt.distributed.dist_server import DistServer
from khop.glt.distributed.job import init_client, shutdown_client

__all__ = ["async_request_server", "init_client", "request_server", "shutdown_client"]

_one_at_a_time = threading.Lock()


def request_server(server_rank: int, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Send a request to a graph server and wait for its reply.

    Args:
        server_rank: rank of the server.
        func: a method of `DistServer`, `torch.cuda.device_count`, or the name of one of khop's
            requests (`khop.distributed.request_server`).
        *args: arguments of the method.
        **kwargs: keyword arguments of the method.

    Raises:
        TypeError, ValueError: `func` is another function. Servers run no code of clients.
        PartitionUnavailableError: the server does not answer.
        RuntimeError: this process is no client.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> request_server(0, DistServer.get_dataset_meta)
        (1, 0, None, None)
    """
    if not _is_method(func):
        return core.request_server(server_rank, func, *args, **kwargs)
    with _one_at_a_time:
        return func(DistServer(server_rank), *args, **kwargs)


def async_request_server(
    server_rank: int, func: Any, *args: Any, **kwargs: Any
) -> torch.futures.Future[Any]:
    """Send a request without waiting, with the arguments of `request_server`.

    Returns:
        A future, whose `wait()` returns the result or raises the errors of `request_server`.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> async_request_server(0, DistServer.get_dataset_meta).wait()
        (1, 0, None, None)
    """
    answer: torch.futures.Future[Any]
    if not _is_method(func):
        answer = core.async_request_server(server_rank, func, *args, **kwargs)
        return answer
    answer = torch.futures.Future()

    def pass_on() -> None:
        try:
            answer.set_result(request_server(server_rank, func, *args, **kwargs))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=pass_on, daemon=True).start()
    return answer


def _is_method(func: Any) -> bool:
    name = getattr(func, "__name__", "_")
    return not name.startswith("_") and getattr(DistServer, name, None) is func
