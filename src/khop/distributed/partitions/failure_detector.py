"""Heartbeats and endpoint updates between trainers, through the job's store. Runs in trainers.

A trainer that runs servers publishes a heartbeat every 2 s, and an update when one of its servers
has moved or ended for good. Other trainers read them only while they miss a server that requests
wait for (`look_for`): then every 0.25 s. If that server's trainer sends no heartbeat for 30 s, it
has ended or is unreachable, and the server is given up. If the store itself is unreachable, because
the trainer or launcher that had it is gone, a lost server is given up after 3 s. All of this runs
in a thread with a separate connection: a connection to the store serves one call at a time, and
that may be a wait.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from khop.distributed.job.rendezvous import StoreRendezvous

_BEAT_SECONDS = 2.0
_LOOK_SECONDS = 0.25
# Length of a search for a server, after the last call of `look_for`.
_INTEREST_SECONDS = 5.0
# Time without a heartbeat after which the trainer of a lost server counts as dead: while the store
# is reachable, and once it is not.
_SILENCE_SECONDS = 30.0
_SILENCE_WITHOUT_STORE = 3.0
# Time for the last updates; then a call of the store that still waits is ended.
_CLOSING_SECONDS = 1.0


@dataclass
class _Wanted:
    """State of the search for one lost server."""

    rank: int
    until: float
    beat: int | None
    last_beat_at: float


class FailureDetector:
    """Publisher of this trainer's server updates, and reader of the other trainers'.

    Args:
        rendezvous: values that the trainers share.
        name: name of the service, unique in the group.
        on_update: called with a server's key and its update, in the detector's thread.
    """

    def __init__(
        self,
        rendezvous: StoreRendezvous,
        name: str,
        on_update: Callable[[int, Mapping[str, Any]], None],
    ) -> None:
        # Opened while the network is known to work, and ended by `close`.
        self._rendezvous = rendezvous.separate()
        self._name = name
        self._on_update = on_update
        self._own: dict[str, Mapping[str, Any]] = {}
        self._told: dict[str, Mapping[str, Any]] = {}
        self._wanted: dict[int, _Wanted] = {}
        self._known: dict[int, Any] = {}
        self._given_up: set[int] = set()
        self._has_servers = False
        self._has_store = True
        self._beats = 0
        self._next_beat = 0.0
        self._changed = threading.Condition()
        self._is_closing = False
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None

    def start_heartbeat(self) -> None:
        """Publish heartbeats from now on; for a trainer that runs servers."""
        self._has_servers = True
        self._wake()

    def publish(self, key: int, update: Mapping[str, Any]) -> None:
        """Publish an update of one of this trainer's servers.

        Args:
            key: key of the server.
            update: {'moved': its announcement} or {'ended': reason}.
        """
        with self._changed:
            self._own[str(key)] = update
        self._wake()

    def look_for(self, key: int, rank: int) -> None:
        """Search for updates of another trainer's server, for 5 s; return at once."""
        if os.getpid() != self._owner:
            return  # a fork has no threads
        now = time.monotonic()
        with self._changed:
            wanted = self._wanted.get(key)
            if wanted is not None:
                wanted.until = now + _INTEREST_SECONDS
                return
            self._wanted[key] = _Wanted(rank, now + _INTEREST_SECONDS, None, now)
        self._wake()

    def _wake(self) -> None:
        if os.getpid() != self._owner:
            return
        with self._changed:
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(
                    target=self._run, name="khop-failure-detector", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        """Publish and read until nothing is left to do. Runs in the thread."""
        rendezvous = self._rendezvous
        while True:
            with self._changed:
                own, is_closing = dict(self._own), self._is_closing
                now = time.monotonic()
                self._wanted = {k: w for k, w in self._wanted.items() if w.until > now}
                wanted = dict(self._wanted)
            try:
                if self._has_store:
                    self._speak(rendezvous, own)
                    self._look(rendezvous, wanted)
            except RuntimeError:  # RendezvousError included; a lost connection does not come back
                self._has_store = False
            self._give_up_silent(wanted)
            if is_closing or not self._rest(own):
                return

    def _speak(self, rendezvous: StoreRendezvous, own: dict[str, Mapping[str, Any]]) -> None:
        """Publish updates of this trainer's servers, and a heartbeat if one is due."""
        if own != self._told:
            rendezvous.publish(f"{self._name}/endpoints", own)
            self._told = own
        if self._has_servers and time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + _BEAT_SECONDS
            self._beats += 1
            rendezvous.publish(f"{self._name}/heartbeat", self._beats)

    def _rest(self, done: Mapping[str, Any]) -> bool:
        """Sleep until something is due; return False if nothing ever will be."""
        with self._changed:
            beats = self._has_servers and self._has_store
            if not beats and not self._wanted and self._own == done:
                self._thread = None
                return False
            if self._own == done and not self._is_closing:
                pause = max(0.0, self._next_beat - time.monotonic())
                self._changed.wait(_LOOK_SECONDS if self._wanted else pause)
            return True

    def _look(self, rendezvous: StoreRendezvous, wanted: Mapping[int, _Wanted]) -> None:
        """Read updates of the missing servers, and heartbeats of their trainers."""
        ranks = {w.rank for w in wanted.values()}
        updates = rendezvous.poll(f"{self._name}/endpoints", ranks)
        beats = rendezvous.poll(f"{self._name}/heartbeat", ranks)
        now = time.monotonic()
        for key, w in wanted.items():
            update = updates.get(w.rank, {}).get(str(key))
            if update is not None and self._known.get(key) != update:
                self._known[key] = update
                self._on_update(key, update)
            if beats.get(w.rank) != w.beat:
                w.beat, w.last_beat_at = beats.get(w.rank), now

    def _give_up_silent(self, wanted: Mapping[int, _Wanted]) -> None:
        now = time.monotonic()
        limit = _SILENCE_SECONDS if self._has_store else _SILENCE_WITHOUT_STORE
        for key, w in wanted.items():
            if now - w.last_beat_at > limit and key not in self._given_up:
                self._given_up.add(key)
                silent = f"which keeps it, has not been heard of for {now - w.last_beat_at:.0f} s"
                gone = "" if self._has_store else ", and the job's store has gone"
                why = f"cannot be reached; trainer {w.rank}, {silent}{gone}: it has ended"
                self._on_update(key, {"ended": why})

    def close(self, reasons: Mapping[int, str]) -> None:
        """Publish the last updates and end the thread.

        Args:
            reasons: reasons for which servers of this trainer have ended, by key.
        """
        if os.getpid() != self._owner:
            return
        with self._changed:
            self._own.update({str(key): {"ended": why} for key, why in reasons.items()})
            self._is_closing = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join(_CLOSING_SECONDS)
        self._rendezvous.disconnect()  # the store may be unreachable without an error
        if thread is not None:
            thread.join(_CLOSING_SECONDS)
