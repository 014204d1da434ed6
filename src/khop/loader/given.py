"""The batches that a user's own `sampler` or `batch_sampler` makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from khop.loader.epochs import KeyedBatch
from khop.loader.replay import Replay, positions_of
from khop.loader.resume import EpochProgress
from khop.sampler.neighbor import BatchKey


class GivenBatches:
    """The batches of an epoch that a user's own sampler makes, keyed by their number.

    Args:
        batches: makes the batches: lists of positions in the loader's input.
        progress: how far the epoch has come.
    """

    def __init__(self, batches: Iterable[Any], progress: EpochProgress) -> None:
        self._batches = batches
        self._progress = progress

    def __iter__(self) -> Iterator[KeyedBatch]:
        """Batches that have not been delivered.

        Raises:
            ValueError: those that have been are others this time.
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
            replay.ask(positions)
            yield KeyedBatch(positions, BatchKey(progress.run_key, batch))
