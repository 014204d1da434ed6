"""Changes of the key file of a running graph server. Run by graph servers, in a thread.

`khop keygen --add` and `--revoke` replace `server.key`. A file that is not what it was is read
again, with the checks of the start. Until it can be read, the keys stay as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from khop import log
from khop.distributed.rpc.key_files import read_server_keys
from khop.distributed.rpc.keys import ServerKeys
from khop.errors import SecurityError

# Seconds between looks at the file.
_LOOK_SECONDS = 1.0
_log = log.get(__name__)


class KeyFileWatch:
    """Watch of a `server.key`; a context manager, whose thread ends with it.

    Args:
        path: the file. Links are followed at each look: Kubernetes changes secrets by a link.
        keys: the keys that the server was started with.
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

    def __enter__(self) -> KeyFileWatch:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Read the file if it has changed, and admit the clients that it names now."""
        try:
            status = self._path.stat()
            seen = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            if seen == self._seen:
                return
            keys = read_server_keys(self._path)
            assert keys is not None  # a file was named
            self._check_pair(keys)
        except (OSError, SecurityError) as error:
            self._complain(str(error))  # and look again: it may be half written
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

    def _check_pair(self, keys: ServerKeys) -> None:
        if keys.server != self._keys.server:
            raise SecurityError(
                f"'{self._path}' has another server pair: start this server again to use it"
            )

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            self._complaint = why
            _log.warning("keys-unreadable", f"clients' keys stay as they were: {why}")
