"""Batches made by a user's own `sampler` or `batch_sampler`. Runs in the trainer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from khop.loader.iteration.epochs import KeyedBatch
from khop.loader.iteration.replay import Replay, positions_of
from khop.loader.iteration.resume import EpochProgress
from khop.sampler.pyg.draw_scope import BatchKey
from khop.typing import Int64Array


class UserBatchSampler:
    """Batches of an epoch by a user's own sampler, keyed by their index.

    Args:
        batches: yields the batches: lists of positions in the loader's input.
        progress: progress of the epoch.
        num_inputs: number of seeds or links in the input.
    """

    def __init__(self, batches: Iterable[Any], progress: EpochProgress, num_inputs: int) -> None:
        self._batches = batches
        self._progress = progress
        self._num_inputs = num_inputs

    def __iter__(self) -> Iterator[KeyedBatch]:
        """Yield the batches that have not been delivered.

        Raises:
            IndexError, TypeError: the sampler does not name positions in the loader's input.
            ValueError: the sampler names other batches than those that were delivered.
        """
        progress = self._progress
        number, replay = progress.delivered, progress.replay
        if replay is None:
            progress.replay = replay = Replay.at_the_beginning(self._batches)
            rest = iter(self._batches)
        else:
            rest = replay.rest(self._batches, number)
        for batch, given in enumerate(rest, start=number):
            positions = positions_of(given)
            _check_positions(positions, self._num_inputs)
            replay.ask(positions)
            yield KeyedBatch(positions, BatchKey(progress.run_key, batch))


def _check_positions(positions: Int64Array, count: int) -> None:
    """Raise IndexError for a position outside the input. -1 is the last one, as in PyG."""
    outside = (positions < -count) | (positions >= count)
    if outside.any():
        raise IndexError(
            f"a sampler names position {int(positions[outside][0])}, but the loader has {count} "
            "seeds or links: samplers name positions among these, not ids"
        )
