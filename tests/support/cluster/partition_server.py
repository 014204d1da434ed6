"""A partition server in a thread, at a loopback address, and its clients."""

from __future__ import annotations

import contextlib
import threading

import numpy as np

from khop.channel.control import ControlLine, socket_pair
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.limits import Limits
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.partition_server import PartitionServer
from khop.partition import PartitionFolder
from khop.sampler.requests import HopRequest, RowSet
from khop.storage.part import Part
from support.cluster import twins

PART = 1
CITES = list(twins.heterogeneous().edge_types).index(twins.CITES)


def make_part(root):
    """Partition a heterogeneous graph into three in a new folder, and return part 1."""
    return Part(PartitionFolder(twins.partitioned(twins.heterogeneous(), root, 3, "time")), PART)


def own_rows(part, relation=CITES):
    """Return the ids of the part's own nodes whose neighbours an edge type has."""
    bounds = part.meta.node_types[part.relations[relation][1]].bounds
    return np.arange(bounds[PART], bounds[PART + 1])


@contextlib.contextmanager
def serving(part, num_threads=1, curve=None, handler=None, **limits):
    """Yield a partition server that runs in a thread, at a loopback address."""
    ours, theirs = socket_pair()
    handler = handler or RequestHandler(part)
    server = PartitionServer(
        handler, None, "127.0.0.1", curve, num_threads, limits=Limits(**limits)
    )
    thread = threading.Thread(target=server.serve, args=(ControlLine(theirs),))
    thread.start()
    try:
        yield server
    finally:
        ours.close()
        thread.join(5)
        assert not thread.is_alive()
        server.close()
        theirs.close()


@contextlib.contextmanager
def client_of(server):
    """Yield a client of a server."""
    client = PartitionClient({PART: Endpoint(server.addresses["tcp"])})
    try:
        yield client
    finally:
        client.close()


def draws(client, part):
    """Return True if the server answers an ordinary request."""
    request = HopRequest(3, False, False, 1)
    ticket = client.sample(PART, CITES, RowSet(own_rows(part)), request)
    client.wait([ticket])
    return len(ticket.result()) == 2
