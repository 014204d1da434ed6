"""Barrier for trainers that detects trainers that have failed or ended.

A step may take one trainer hours longer than another, so a fixed timeout, as in a rendezvous, does
not work. Each trainer publishes a heartbeat every second. A wait ends when all trainers have
arrived, when one has published a failure, or when one has sent no heartbeat for the rendezvous's
timeout: it was killed, or never started.
"""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Any, TypeAlias

from khop.distributed.job.polling import pauses
from khop.distributed.job.rendezvous import StoreRendezvous
from khop.distributed.rpc.protocol import describe_error
from khop.errors import RendezvousError
from khop.log import printable_lines

_BEAT_SECONDS = 1.0
# Time for the last heartbeat; then a call of the store that still waits is ended.
_CLOSING_SECONDS = 10.0
_LONGEST_PAUSE = 0.2
_Beats: TypeAlias = "dict[int, tuple[int | None, float]]"
"""Last heartbeat of trainers, by rank, and when it was seen to have changed."""


class MonitoredBarrier:
    """Context manager for steps that all trainers of a group take together.

    All trainers create one, in the same order, and enter it. An exception that leaves the context
    is published. The other trainers raise RendezvousError at their next `check` or `exchange`. They
    raise it in place of an OSError too: that may be a consequence, as files and servers are gone.

    Args:
        rendezvous: the trainers' shared values.
        name: prefix of the keys; unique in the group.

    Attributes:
        rendezvous: the same, over the connection of this group of trainers.
    """

    def __init__(self, rendezvous: StoreRendezvous, name: str) -> None:
        # Heartbeats do not wait for other calls, and a call that waits can be ended.
        self.rendezvous = rendezvous.separate()
        self._name = name
        self._others = [r for r in range(rendezvous.world_size) if r != rendezvous.rank]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="khop-barrier", daemon=True)
        self._failure: RendezvousError | None = None

    def __enter__(self) -> MonitoredBarrier:
        self.start()
        return self

    def start(self) -> None:
        """Publish heartbeats from now on, until `close`."""
        if self._others:
            self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """End the heartbeats.

        Args:
            error: a failure to publish. If None, there was none.
        """
        self._stop.set()
        if not self._others:
            return
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():  # a call waits for a store that is silent
            self.rendezvous.disconnect()
            self._thread.join(1.0)
        if error is None or error is self._failure:
            return
        if isinstance(error, OSError):
            self._hear_of_failures()
            self.check()
        with contextlib.suppress(RuntimeError):  # the store is gone: the others notice it, too
            self.rendezvous.publish(f"{self._name}/failed", describe_error(error))

    def _beat(self) -> None:
        """Publish heartbeats, and record failures of others, until stopped. Runs in a thread."""
        count = 0
        while self._failure is None and not self._stop.wait(_BEAT_SECONDS if count else 0):
            count += 1
            try:
                self.rendezvous.publish(f"{self._name}/heartbeat", count)
            except RuntimeError as error:
                self._failure = self._store_has_gone(error)
            self._hear_of_failures()

    def _hear_of_failures(self) -> None:
        try:
            failed = self.rendezvous.poll(f"{self._name}/failed", self._others)
        except RendezvousError as error:
            self._failure = error
            return
        for rank, described in failed.items():
            failure = printable_lines(f"{described['type']}: {described['message']}")
            self._failure = RendezvousError(
                f"trainer {self.rendezvous.rank} cannot go on with {self._name}: trainer {rank} "
                f"has failed with {failure}"
            )

    def _store_has_gone(self, error: RuntimeError) -> RendezvousError:
        return RendezvousError(
            f"trainer {self.rendezvous.rank} cannot reach the job's store: {error}"
        )

    def check(self) -> None:
        """Raise RendezvousError if a failure of another trainer has been recorded."""
        if self._failure is not None:
            raise self._failure

    def find_silent(self, seconds: float) -> list[int]:
        """Return the ranks of trainers that send no heartbeat for some seconds from now.

        Args:
            seconds: how long to wait for the heartbeats; all that are there come sooner.

        Raises:
            RendezvousError: the store is unreachable.
        """
        name = f"{self._name}/heartbeat"
        before, silent = self.rendezvous.poll(name, self._others), list(self._others)
        for _ in pauses(seconds):
            beats = self.rendezvous.poll(name, silent)
            silent = [rank for rank in silent if beats.get(rank) == before.get(rank)]
            if not silent:
                break
        return silent

    def all_gather(self, step: str, value: Any) -> list[Any]:
        """Publish a value and wait for those of all trainers.

        Args:
            step: name of the step; all trainers must take the same steps.
            value: anything that JSON can hold.

        Returns:
            The values of all trainers, by rank.

        Raises:
            RendezvousError: a trainer has failed, or has sent no heartbeat for the timeout.
        """
        name = f"{self._name}/{step}"
        try:
            self.rendezvous.publish(name, value)
        except RuntimeError as error:
            raise self._store_has_gone(error) from None
        pause, last_look = 0.005, time.monotonic()
        last_beats: _Beats = dict.fromkeys(self._others, (None, last_look))
        while not self.rendezvous.all_published(name):
            self.check()
            self._stop.wait(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            if time.monotonic() - last_look > _BEAT_SECONDS:
                last_look = time.monotonic()
                self._look_for_silence(name, last_beats)
        values = self.rendezvous.poll(name, range(self.rendezvous.world_size))
        return [values[rank] for rank in sorted(values)]

    def _look_for_silence(self, name: str, last_beats: _Beats) -> None:
        """Raise RendezvousError if a missing trainer has sent no heartbeat for the timeout."""
        now = time.monotonic()
        arrived = self.rendezvous.poll(name, self._others)
        beats = self.rendezvous.poll(f"{self._name}/heartbeat", self._others)
        for rank, (beat, since) in last_beats.items():
            if beats.get(rank) != beat or rank in arrived:
                last_beats[rank] = (beats.get(rank), now)
            elif now - since > self.rendezvous.timeout:
                self._failure = RendezvousError(
                    f"trainer {self.rendezvous.rank} waits in {self._name} for trainer {rank}, "
                    f"which has not been heard of for {now - since:.0f} s: it has ended, or has "
                    "not begun"
                )
                raise self._failure
