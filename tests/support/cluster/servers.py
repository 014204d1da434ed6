"""Graph servers for tests, as real processes with this process or others as clients."""

import contextlib
import os
import signal

from khop.distributed import DistDataset, init_client, shutdown_client
from khop.distributed.remote.launch import start_server
from khop.distributed.remote.server.server_config import ServerConfig
from support.cluster import jobs


class Cluster:
    """The graph servers of a folder, each in a process.

    Args:
        root: the partition folder.
        parts: partitions of each server.
        num_clients: number of clients that the servers wait for. 0: any number.
        labels: file of node labels that the folder does not hold.
        methods: modules of sampling methods.
        **options: fields of `ServerConfig`.
    """

    def __init__(self, root, parts, num_clients=0, labels=None, methods=(), **options):
        self.host, self.port = "127.0.0.1", jobs.free_port()
        self.num_clients = num_clients
        self._root, self._parts, self._labels = root, parts, labels
        self._methods, self._options = methods, options
        self.servers = [self._start(rank) for rank in range(len(parts))]

    def _start(self, rank):
        home, *others = self._parts[rank]
        dataset = DistDataset().load(
            self._root, home, also_serve=others, whole_node_label_file=self._labels
        )
        master = f"{self.host}:{self.port}"
        config = ServerConfig("", rank, len(self._parts), self.num_clients, master, **self._options)
        return start_server(dataset, config, self._methods)

    def kill(self, rank):
        """Kill a server. Its samplers end with it."""
        os.kill(self.servers[rank].process.pid, signal.SIGKILL)
        self.servers[rank].close()

    def restart(self, rank):
        """Start a server again."""
        self.servers[rank] = self._start(rank)

    @contextlib.contextmanager
    def client(self, rank=0, num_clients=None):
        """Make this process a client in the block."""
        count = self.num_clients if num_clients is None else num_clients
        context = init_client(len(self.servers), count, rank, self.host, self.port)
        try:
            yield context
        finally:
            shutdown_client()

    def close(self):
        """End the servers."""
        while self.servers:  # pytest keeps fixtures longer than a test may leave something behind
            self.servers.pop().close()


@contextlib.contextmanager
def cluster(root, parts, num_clients=0, labels=None, **options):
    """Yield the graph servers of a folder, which end with the block. Arguments: see `Cluster`."""
    servers = Cluster(root, parts, num_clients, labels, **options)
    try:
        yield servers
    finally:
        servers.close()
