"""Restart policy of a trainer's samplers: when to restart, when to raise SamplerDiedError."""

from __future__ import annotations

from khop import log
from khop.distributed.sampling.process_handle import SamplerProcess
from khop.errors import SamplerDiedError

_log = log.get(__name__)
# Deaths on the same batch that end the loader. A second may happen by chance, if batches take long
# or samplers are killed often; a fourth does not.
_MAX_AT_A_BATCH = 4


class RestartPolicy:
    """Count of the restarts of a loader's samplers, with its limits.

    Args:
        max_restarts: maximum number of restarts.

    Attributes:
        num_restarts: number of restarts so far.
    """

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self.num_restarts = 0
        self._at: dict[tuple[int, int], int] = {}

    def record_exit(self, dead: SamplerProcess) -> None:
        """Reap a dead sampler and count the restart.

        Raises:
            SamplerDiedError: `max_restarts` is exhausted, or four samplers died on one batch.
        """
        status = dead.process.exit_status()
        dead.process.close()
        if dead.process.ended_with_server:  # not counted: a receiver replaces it
            _say(dead, status, self.num_restarts)
            return
        task = dead.process.last_task()
        if task in dead.in_flight:
            assert task is not None
            self._at[task] = self._at.get(task, 0) + 1
            if self._at[task] >= _MAX_AT_A_BATCH:
                why = f"{_MAX_AT_A_BATCH} samplers have died at work on batch {task[1]}"
                raise SamplerDiedError(_exit_report(dead, status, why))
        if self.num_restarts >= self._max_restarts:
            why = f"samplers have been restarted {self.num_restarts} times; max_restarts bounds it"
            raise SamplerDiedError(_exit_report(dead, status, why))
        self.num_restarts += 1
        _say(dead, status, self.num_restarts)

    def forget(self, epoch: int) -> None:
        """Forget the deaths on batches of an epoch that has ended."""
        self._at = {task: count for task, count in self._at.items() if task[0] != epoch}


def _say(dead: SamplerProcess, status: str, restarts: int) -> None:
    _log.warning(
        "sampler-restarted",
        f"sampler {dead.number} (pid {dead.process.pid}) {status}: it is started again",
        sampler=dead.number,
        pid=dead.process.pid,
        owed=len(dead.in_flight),
        restarts=restarts,
    )


def _exit_report(dead: SamplerProcess, status: str, why: str) -> str:
    """Return a text with a sampler's exit status, batches in flight, current task and log."""
    task, log = dead.process.last_task(), dead.process.log_tail()
    last = "It had worked on none" if task is None else f"It worked on batch {task[1]} last"
    due = sorted(batch for _, batch in dead.in_flight)
    asked = f"batches {due} were due" if due else "no batch was due"
    return (
        f"sampler process {dead.number} (pid {dead.process.pid}) {status} while {asked}, and "
        f"{why}. {last}. Killed processes "
        "often mean that memory ran out." + (f"\nThe end of its log:\n{log}" if log else "")
    )
