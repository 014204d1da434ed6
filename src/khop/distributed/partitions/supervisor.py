"""Supervisor of a trainer's servers: a thread that restarts them when they end. Runs in trainers.

Other trainers may wait for a server while the trainer that started it is in a training step, or
waits for them in a collective. So a thread restarts it, and sleeps until a server ends. A server
restarts at the same socket, port and keys, so that connections to it recover by themselves. If it
cannot, its new addresses are published (`on_moved`). A server that dies 5 times in a row within 2 s
of its start is given up (`on_given_up`): a request kills it, or it cannot work at all.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from khop import log
from khop.channel.control import Op
from khop.distributed.partitions.server_process import Announcement, PartitionServerProcess

# Seconds. A server that dies sooner after its start counts as not having worked.
_SOON = 2.0
_MAX_IN_A_ROW = 5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_log = log.get(__name__)


@dataclass
class _Supervised:
    server: PartitionServerProcess
    began: float
    start_at: float | None = None
    quick_deaths: int = 0
    last_error: str = ""


class ServerSupervisor:
    """Supervisor that restarts this trainer's servers when they die.

    Args:
        on_moved: called in the supervisor's thread with a server's key and its announcement if it
            restarted at another address.
        on_given_up: called in the same thread with a server's key and the reason to give it up.

    Attributes:
        num_restarts: number of restarts.
    """

    def __init__(
        self,
        on_moved: Callable[[int, Announcement], None],
        on_given_up: Callable[[int, str], None],
    ) -> None:
        self._on_moved = on_moved
        self._on_given_up = on_given_up
        self._kept: dict[int, _Supervised] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        # A supervisor without servers may be dropped without `close`.
        self._close_wake = weakref.finalize(self, os.close, self._wake)
        self._close_wake.atexit = False
        self._is_closing = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="khop-supervisor", daemon=True)
        self.num_restarts = 0

    def keep(self, key: int, server: PartitionServerProcess) -> None:
        """Restart a server whenever it ends, until `close`. `key` identifies it in callbacks."""
        self._kept[key] = _Supervised(server, time.monotonic())
        if not self._thread.is_alive():
            self._thread.start()
        os.eventfd_write(self._wake, 1)

    @property
    def servers(self) -> dict[int, PartitionServerProcess]:
        return {key: kept.server for key, kept in list(self._kept.items())}

    def _run(self) -> None:
        while not self._is_closing:
            supervised = list(self._kept.items())
            lines = {
                kept.server.process.line.fileno(): (key, kept)
                for key, kept in supervised
                if kept.start_at is None
            }
            due = [kept.start_at for _, kept in supervised if kept.start_at is not None]
            timeout_ms = max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None
            poller = select.poll()
            for descriptor in (self._wake, *lines):
                poller.register(descriptor, select.POLLIN)
            for descriptor, _ in poller.poll(timeout_ms):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                elif not self._is_closing:
                    self._read_messages(*lines[descriptor])
            if not self._is_closing:
                self._start_due()

    def _read_messages(self, key: int, kept: _Supervised) -> None:
        server = kept.server
        try:
            while (message := server.process.line.receive()) is not None:
                if message.op is Op.READY:
                    kept.began = time.monotonic()
                    pid = server.process.pid
                    _log.info("server-up", f"the server of {server.content} is up", pid=pid)
                    if server.learn_addresses(message):
                        self._on_moved(key, server.announcement)
                elif message.op is Op.ERROR:
                    kept.last_error = str(message.json().get("message"))
        except EOFError:
            self._on_exit(key, kept)

    def _on_exit(self, key: int, kept: _Supervised) -> None:
        """Schedule the restart of a server that has ended, or give it up."""
        now = time.monotonic()
        process = kept.server.process
        status = process.exit_status()
        kept.quick_deaths = kept.quick_deaths + 1 if now - kept.began < _SOON else 0
        if kept.quick_deaths >= _MAX_IN_A_ROW:
            del self._kept[key]
            kept.server.close()
            error = f" ({kept.last_error})" if kept.last_error else ""
            why = (
                f"has ended for good: its process (pid {process.pid}) {status}{error}, and the "
                f"{kept.quick_deaths - 1} before it ended within {_SOON:g} s of their start, too"
            )
            _log.error("server-given-up", f"the server of {kept.server.content} {why}")
            self._on_given_up(key, why)
            return
        pause = 0.0
        if kept.quick_deaths > 1:
            pause = min(_FIRST_PAUSE * 2 ** (kept.quick_deaths - 2), _LONGEST_PAUSE)
        kept.start_at = now + pause
        _log.warning(
            "server-restarted",
            f"the server of {kept.server.content} {status}: it is started again",
            pid=process.pid,
            restarts=self.num_restarts + 1,
        )

    def _start_due(self) -> None:
        now = time.monotonic()
        for key, kept in list(self._kept.items()):
            if kept.start_at is not None and now >= kept.start_at:
                kept.start_at = None
                kept.began = now
                self.num_restarts += 1
                try:
                    kept.server.start_again()
                except OSError as error:  # no processes or descriptors left, or no room for a file
                    kept.last_error = str(error)
                    self._on_exit(key, kept)

    def close(self) -> None:
        if self._is_closing or os.getpid() != self._owner:
            return
        self._is_closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join()
        for kept in self._kept.values():
            with contextlib.suppress(OSError):
                kept.server.close()
        self._kept.clear()
        self._close_wake()
