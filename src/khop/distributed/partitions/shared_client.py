"""Connections of one process to the other partitions. Runs in trainers and worker processes."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.partition_client import PartitionClient

if TYPE_CHECKING:
    from khop.distributed.partitions.endpoint_registry import EndpointRegistry


class SharedClient:
    """Connections to other partitions' servers, which threads and forks of a process share.

    One thread uses them at a time. After `fork` or pickling, each process opens its own. Two
    threads must not use a ZeroMQ socket at the same time, so a lock guards the client. The registry
    finds lost servers for this process. In other processes a lost server must return at its old
    endpoint.
    """

    def __init__(
        self,
        endpoints: Mapping[int, Endpoint],
        credentials: KeyPair | None = None,
        endpoint_registry: EndpointRegistry | None = None,
    ) -> None:
        self._endpoints = dict(endpoints)
        self._credentials = credentials
        self._endpoint_registry = endpoint_registry
        self._owner = os.getpid()
        # By process id: a fork must use neither its parent's sockets nor its locks.
        self._clients: dict[int, PartitionClient] = {}
        self._locks: dict[int, threading.Lock] = {}
        weakref.finalize(self, _close, self._clients)

    def __reduce__(self) -> tuple[type[SharedClient], tuple[dict[int, Endpoint], KeyPair | None]]:
        """Pickle only the endpoints and the keys. The new process opens connections of its own."""
        return SharedClient, (self._endpoints, self._credentials)

    @contextmanager
    def client(self) -> Iterator[PartitionClient]:
        """Yield this process's client once no other thread uses it."""
        process = os.getpid()
        with self._locks.setdefault(process, threading.Lock()):
            if process not in self._clients:
                client = PartitionClient(self._endpoints, self._credentials)
                if self._endpoint_registry is not None and process == self._owner:
                    self._endpoint_registry.follow(client)
                self._clients[process] = client
            yield self._clients[process]


def _close(clients: dict[int, PartitionClient]) -> None:
    client = clients.pop(os.getpid(), None)
    if client is not None:
        client.close()
