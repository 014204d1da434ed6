"""What trainers tell each other of their servers while a job runs, through its store.

A trainer that has servers says every two seconds that it is alive, and says so when a server of its
has moved or ended for good. Nobody listens until a server is lost that requests wait for
(`look_for`): then a few times a second. A trainer whose server is lost and that is itself silent
for half a minute has ended, or is cut off; its server is given up. So is, after some seconds, one
that is lost when the store itself has gone: with the trainer or launcher that had it. All of it
runs in a thread with a connection of its own: the store lets a connection do one thing at a time,
and that may be a wait.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from khop.distributed.job.rendezvous import Rendezvous

_BEAT_SECONDS = 2.0
_LOOK_SECONDS = 0.25
# For so long a trainer is looked for, after it was last asked for.
_INTEREST_SECONDS = 5.0
# After so long a trainer whose server is lost counts as ended: when nothing is heard of it, and
# when there is no store any more.
_SILENCE_SECONDS = 30.0
_SILENCE_WITHOUT_STORE = 3.0


@dataclass
class _Wanted:
    """A server that is looked for."""

    rank: int
    until: float
    beat: int | None
    heard: float


class FailureDetector:
    """Tells other trainers of this one's servers, and hears of theirs.

    Args:
        rendezvous: how trainers tell each other things.
        name: of the service; no two have the same.
        on_news: called with a server's key and its news, in the herald's thread.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        name: str,
        on_news: Callable[[int, Mapping[str, Any]], None],
    ) -> None:
        self._rendezvous = rendezvous
        self._name = name
        self._on_news = on_news
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
        """Says from here on that this trainer is alive: it has servers."""
        self._has_servers = True
        self._wake()

    def tell(self, key: int, news: Mapping[str, Any]) -> None:
        """Tells what has become of one of this trainer's servers.

        Args:
            key: the server's.
            news: {'moved': its announcement} or {'ended': why}.
        """
        with self._changed:
            self._own[str(key)] = news
        self._wake()

    def look_for(self, key: int, rank: int) -> None:
        """Looks for news of another trainer's server, for some seconds; returns at once."""
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
                self._thread = threading.Thread(target=self._run, name="khop-herald", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        """Tells and looks until there is nothing more to do."""
        rendezvous = self._rendezvous.separate()
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

    def _speak(self, rendezvous: Rendezvous, own: dict[str, Mapping[str, Any]]) -> None:
        """Tells news of this trainer's servers, and that it is alive when that is due."""
        if own != self._told:
            rendezvous.tell(f"{self._name}/news", own)
            self._told = own
        if self._has_servers and time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + _BEAT_SECONDS
            self._beats += 1
            rendezvous.tell(f"{self._name}/alive", self._beats)

    def _rest(self, done: Mapping[str, Any]) -> bool:
        """Sleeps until something is due; returns whether anything ever will be."""
        with self._changed:
            beats = self._has_servers and self._has_store
            if not beats and not self._wanted and self._own == done:
                self._thread = None
                return False
            if self._own == done and not self._is_closing:
                pause = max(0.0, self._next_beat - time.monotonic())
                self._changed.wait(_LOOK_SECONDS if self._wanted else pause)
            return True

    def _look(self, rendezvous: Rendezvous, wanted: Mapping[int, _Wanted]) -> None:
        """Asks the store for news of those who are looked for, and whether they are alive."""
        ranks = {w.rank for w in wanted.values()}
        told = rendezvous.told(f"{self._name}/news", ranks)
        beats = rendezvous.told(f"{self._name}/alive", ranks)
        now = time.monotonic()
        for key, w in wanted.items():
            news = told.get(w.rank, {}).get(str(key))
            if news is not None and self._known.get(key) != news:
                self._known[key] = news
                self._on_news(key, news)
            if beats.get(w.rank) != w.beat:
                w.beat, w.heard = beats.get(w.rank), now

    def _give_up_silent(self, wanted: Mapping[int, _Wanted]) -> None:
        now = time.monotonic()
        limit = _SILENCE_SECONDS if self._has_store else _SILENCE_WITHOUT_STORE
        for key, w in wanted.items():
            if now - w.heard > limit and key not in self._given_up:
                self._given_up.add(key)
                silent = f"which keeps it, has not been heard of for {now - w.heard:.0f} s"
                gone = "" if self._has_store else ", and the job's store has gone"
                why = f"cannot be reached; trainer {w.rank}, {silent}{gone}: it has ended"
                self._on_news(key, {"ended": why})

    def close(self, last_words: Mapping[int, str]) -> None:
        """Ends the thread.

        Args:
            last_words: why servers of this trainer have ended, by key.
        """
        if os.getpid() != self._owner:
            return
        with self._changed:
            self._own.update({str(key): {"ended": why} for key, why in last_words.items()})
            self._is_closing = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join(1.0)  # the store may have gone silently
