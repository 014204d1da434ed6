"""Base of all loaders, of graphs in memory and of partitioned graphs. Runs in the trainer.

A loader begins epochs, each with its own key and iterator, saves and restores its progress, and
keeps statistics. Each loader opens its own `BatchSource`, which makes the batches of an epoch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from khop.loader.iteration.epochs import EpochKeys
from khop.loader.iteration.iterator import BatchSource, EpochIterator
from khop.loader.iteration.resume import EpochCursor, EpochProgress, LoaderFingerprint
from khop.metrics.loader_stats import LoaderStats, StatsAccumulator


class StatefulLoader:
    """Base class of loaders that begin epochs, and save and restore their progress."""

    batch_size: int | None
    drop_last: bool
    _shuffle: bool
    _has_user_sampler = False  # which names the batches
    _tally: StatsAccumulator
    _restarts_before = 0  # `reset_stats`

    def _set_up_epochs(
        self, seed: int | None, stream: int | None, generator: torch.Generator | None, rank: int
    ) -> None:
        """Set up the counter of epochs and their random keys.

        Arguments: see `EpochKeys`. If `stream` is None, it is the trainer's `rank`.
        """
        self._keys = EpochKeys(seed, rank if stream is None else stream, generator)
        self._cursor = EpochCursor(self._keys, rank)

    # Defined by the loaders.

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        raise NotImplementedError

    def _open(self, progress: EpochProgress) -> BatchSource:
        """Return the source of an epoch's batches, from the first undelivered one on."""
        raise NotImplementedError

    @property
    def _digests(self) -> tuple[str, str | None]:
        """Digests of the seeds and of the sampling options, to compare with a saved state.

        The second is None for a user's own sampler.
        """
        raise NotImplementedError

    @property
    def _num_restarts(self) -> int:
        return 0

    def _check_resumable(self) -> None:
        """Raise ValueError if batches come out of order, so that no count identifies them."""

    # Shared by all loaders.

    def __iter__(self) -> EpochIterator:
        """Begin an epoch. Several may run at the same time, and an epoch may be left early."""
        progress = self._cursor.begin()
        return EpochIterator(self, self._open(progress), progress, self._tally)

    def progress(self, **options: Any) -> Iterator[Any]:
        """Begin an epoch, and show a progress bar of `tqdm` for it.

        Args:
            **options: arguments of `tqdm`: `desc`, `leave`, `disable`, ...

        Yields:
            The batches. After `load_state_dict` the bar begins where the epoch was.

        Example:
            >>> loader = khop.loader.NeighborLoader(data, [2], batch_size=3)
            >>> sum(batch.batch_size for batch in loader.progress(disable=True))
            6
        """
        from tqdm.auto import tqdm

        with contextlib.closing(iter(self)) as epoch:
            shown = {"unit": "batch", "total": len(self), "initial": epoch.delivered}
            with tqdm(**{**shown, **options}) as bar:
                for batch in epoch:
                    yield batch
                    bar.update()

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's progress: a small dictionary of plain values, for checkpoints.

        It describes the epoch that began last. Batches count when they are delivered, not when they
        are prefetched. Keys are always the same and differ between trainers, so one checkpoint of
        `torch.distributed.checkpoint` can hold the states of all. Torchdata's `StatefulDataLoader`
        has the same names with the same meaning. The call changes nothing.

        With `num_virtual_ranks`, the state covers all virtual ranks, and is the same on every
        trainer. All trainers must save it after the same number of batches.

        Raises:
            ValueError: torch's workers deliver batches in any order (`in_order=False`).
        """
        self._check_resumable()
        return self._cursor.state(self._identities())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next epoch continue where a loader with the same arguments was stopped.

        The next iterator makes exactly the batches that had not been delivered. The numbers of
        workers and partitions may change. If only the end of the epoch was left, it makes none. If
        no epoch was in progress, a new one begins. With a `seed`, or a `generator` (whose state
        is restored), later epochs are the same as without a stop. If torch's default generator
        decides, restore its state, too, for the epochs after the next.

        Some frameworks save the first trainer's state only. With a `seed`, the other trainers use
        that state, because all trainers of a job have made the same number of batches.

        Args:
            state_dict: result of `state_dict` of a loader with the same seeds, options of sampling,
                batch size, order and seed, in memory or distributed. With `num_virtual_ranks`, the
                number of trainers may differ. An empty dictionary loads nothing.

        Raises:
            TypeError: `state_dict` is not a dictionary.
            ValueError: the state is another loader's, and the message names the difference. In the
                next epoch: a user's `sampler` names other seeds than before.
        """
        self._check_resumable()
        self._cursor.load(state_dict, self._identities())

    def _identities(self) -> list[LoaderFingerprint]:
        """Return the fingerprint of this loader, in a list.

        With virtual ranks: one for each of them. A loader can load a state only if the state has
        the same fingerprints.
        """
        seeds, sampling = self._digests
        num_batches = None if self._has_user_sampler else len(self)
        return [self._identity(seeds, sampling, self._keys.stream, num_batches)]

    def _identity(
        self, seeds: str, sampling: str | None, stream: int, num_batches: int | None
    ) -> LoaderFingerprint:
        return LoaderFingerprint(
            seeds=seeds,
            sampling=sampling,
            batch_size=self.batch_size,
            drop_last=bool(self.drop_last),
            shuffle=self._shuffle,
            seed=self._keys.seed,
            stream=stream,
            num_batches=num_batches,
        )

    def stats(self) -> LoaderStats:
        """Return statistics over all epochs of the loader, or since `reset_stats()`.

        For batches made in torch's worker processes (`worker_type='process'`), only their number
        and the trainer's time are known.
        """
        return self._tally.snapshot(self._num_restarts - self._restarts_before)

    def reset_stats(self) -> None:
        """Reset the statistics to zero."""
        self._restarts_before = self._num_restarts
        self._tally.clear()
