"""Servers of partitions in threads of a test."""

import contextlib
import threading

from khop.channel.control import ControlLine, socket_pair
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.partition_server import PartitionServer


@contextlib.contextmanager
def serving(handlers, folder):
    """Servers in threads: {number: endpoint}."""
    with contextlib.ExitStack() as stack:
        endpoints = {}
        for number, handler in handlers.items():
            ours, theirs = socket_pair()
            server = PartitionServer(handler, str(folder / f"s{number}"), None, None)
            thread = threading.Thread(target=server.serve, args=(ControlLine(theirs),))
            thread.start()
            for action in (theirs.close, server.close, thread.join, ours.close):
                stack.callback(action)
            endpoints[number] = Endpoint(server.addresses["ipc"])
        yield endpoints
