"""Program of the graph server's process.

`khop serve` runs it in its own process. `init_server` starts it as a child, and sends the
`ServerConfig`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from khop import codec, log
from khop.channel.control import ControlLine, Op
from khop.channel.shared import read_shared
from khop.distributed.processes.child import start_up
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.server.graph_server import GraphServer
from khop.distributed.remote.server.server_config import ServerConfig
from khop.distributed.rpc.key_files import read_server_keys
from khop.distributed.rpc.keys import ServerKeys
from khop.distributed.rpc.protocol import describe_error
from khop.distributed.rpc.tcp_sockets import raise_descriptor_limit
from khop.errors import SecurityError
from khop.sampler.methods.modules import import_methods, modules_named
from khop.typing import Array

# Seconds between checks of the key file.
_KEY_FILE_SECONDS = 1.0
_log = log.get(__name__)


def serve(
    config: ServerConfig,
    labels: Mapping[int, Array],
    line: ControlLine,
    on_ready: Callable[[Mapping[str, str]], None],
) -> None:
    """Run a graph server until its control line closes, or all clients are gone.

    Args:
        config: the configuration.
        labels: {index of a node type: labels, [num_nodes, ...] by original id}, not in the folder.
        line: control line. The server ends when it is closed.
        on_ready: called with the server's addresses, once clients can reach it.

    Raises:
        FolderError, ValueError, IndexError: the folder or a partition does not exist.
        ImportError: a module of `methods` is not found.
        SecurityError: the server would listen beyond loopback without keys.
        RendezvousError: the address cannot be bound, or server 0 refuses this server.
    """
    config = replace(config, methods=modules_named(config.methods))
    keys = None if config.keys is None else ServerKeys.from_json(config.keys)
    raise_descriptor_limit()
    import_methods(config.methods)
    with contextlib.ExitStack() as stack:
        server = GraphServer(config, keys, labels, stack)
        stack.callback(server.close)
        if keys is not None and config.key_file is not None:
            watch = KeyFileWatch(config.key_file, keys, server.admit)
            watch.start()
            stack.callback(watch.close)
        remote = DirectoryClient(
            Servers.with_keys(config.master, keys),
            server.registration,
            on_table=server.take_table,
            on_refused=server.take_refusal,
        )
        # Server 0 does not unregister: the directory ends with it.
        stack.callback(remote.close, goodbye=config.rank != 0)
        if config.metrics_port is not None:
            # Imported here: few servers have a metrics port.
            from khop.metrics import MetricsServer, of_server

            stack.enter_context(
                MetricsServer(config.metrics_port, lambda: of_server(server.counters.snapshot()))
            )
        address = server.addresses["tcp"]
        _log.info("server-ready", f"graph server {config.rank} is at {address}", address=address)
        on_ready(server.addresses)
        server.serve(line)
    _log.info("server-ended", f"graph server {config.rank} has ended")


class KeyFileWatch:
    """Thread that watches a `server.key`, which `khop keygen --add` and `--revoke` replace.

    If the file has changed, it is read again, with the same checks as at the server's start. While
    it cannot be read, the known keys remain in use.

    Args:
        path: the file. Links are followed at each look: Kubernetes changes secrets by a link.
        keys: the keys with which the server was started.
        admit: called with the clients' public keys when they have changed.
    """

    def __init__(
        self, path: str | Path, keys: ServerKeys, admit: Callable[[Sequence[str]], None]
    ) -> None:
        self._path = Path(path)
        self._keys = keys
        self._admit = admit
        self._seen: tuple[int, ...] | None = None
        self._complaint = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="khop-key-file", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_KEY_FILE_SECONDS):
            self.look()

    def look(self) -> None:
        """Read the file again if it has changed, and pass the clients' keys in it to `admit`."""
        try:
            status = self._path.stat()
            seen = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            if seen == self._seen:
                return
            keys = read_server_keys(self._path)
            assert keys is not None  # a file was named
            if keys.server != self._keys.server:
                raise SecurityError(
                    f"'{self._path}' has another server pair: start this server again to use it"
                )
        except (OSError, SecurityError) as error:  # and look again: perhaps it is half written
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.warning("keys-unreadable", f"clients' keys stay as they were: {error}")
            return
        self._seen, self._complaint = seen, ""
        before, now = set(self._keys.clients.values()), set(keys.clients.values())
        self._keys = keys
        if before != now:
            self._admit(sorted(now))
            _log.info(
                "keys-changed",
                f"'{self._path}' was changed: {len(now - before)} clients were added, "
                f"{len(before - now)} revoked",
            )


def main() -> None:
    """Run a graph server that `init_server` has started. `start_up` connects it to its parent."""
    line, message = start_up()
    try:
        content, names = message.json(), {field.name for field in fields(ServerConfig)}
        content = {name: value for name, value in content.items() if name in names}
        config = codec.from_json(ServerConfig, content, "a graph server's configuration")
        labels: dict[int, Array] = {}
        if config.has_labels:
            shared = message.descriptors.pop()
            labels = {int(name): rows for name, rows in read_shared(shared).items()}
            os.close(shared)

        def on_ready(addresses: Mapping[str, str]) -> None:
            line.send_json(Op.READY, {"addresses": dict(addresses)})

        serve(config, labels, line, on_ready)
    except (EOFError, ConnectionError):
        pass  # the process that started it has ended
    except Exception as error:
        with contextlib.suppress(ConnectionError):
            line.send_json(Op.ERROR, describe_error(error))
        sys.exit(1)
