"""Restart policy of a loader's samplers, in a trainer or on a graph server."""

from __future__ import annotations

from collections.abc import Collection, Hashable

# Deaths on the same batch that end the loader. A second may happen by chance, if batches take long
# or samplers are killed often; a fourth does not.
_MAX_AT_A_BATCH = 4


class RestartPolicy:
    """Count of the restarts of a loader's samplers, with its limits.

    Args:
        max_restarts: maximum number of restarts.

    Attributes:
        num_restarts: number of restarts so far.

    Example:
        >>> policy = RestartPolicy(max_restarts=1)
        >>> policy.record_exit(None, in_flight=[])
        >>> policy.record_exit(None, in_flight=[])
        'samplers have been restarted 1 times; max_restarts bounds it'
    """

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self.num_restarts = 0
        self._exits: dict[Hashable, int] = {}

    def record_exit(
        self, task: Hashable | None, in_flight: Collection[Hashable], name: str = ""
    ) -> str | None:
        """Record that a sampler has died, and decide whether another is started in its place.

        Args:
            task: batch that it worked on last, by any key that stays the same when the batch is
                requested again. If None, that is not known.
            in_flight: keys of all batches in flight; deaths on others are forgotten.
            name: name of the batch for the reason.

        Returns:
            Reason for which there is no restart: `max_restarts` is exhausted, or four samplers
            died on one batch. None if the sampler is restarted.
        """
        self._exits = {known: n for known, n in self._exits.items() if known in in_flight}
        if task is not None and task in in_flight:
            self._exits[task] = self._exits.get(task, 0) + 1
            if self._exits[task] >= _MAX_AT_A_BATCH:
                return f"{_MAX_AT_A_BATCH} samplers have died at work on {name}"
        if self.num_restarts >= self._max_restarts:
            return f"samplers have been restarted {self.num_restarts} times; max_restarts bounds it"
        self.num_restarts += 1
        return None
