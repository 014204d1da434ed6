"""Progress of a loader with virtual ranks, saved and restored by virtual rank. Runs in the trainer.

All trainers of a job take the same number of batches between two states, as DDP requires. So each
trainer knows the progress of all virtual ranks (`virtual_ranks`), and all trainers save the same
state. It has an entry for each virtual rank, in the form of the entry of a loader without virtual
ranks. Any number of trainers can load it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from khop import _native
from khop.loader.iteration.epochs import EpochKeys
from khop.loader.iteration.resume import (
    EpochCursor,
    EpochProgress,
    LoaderFingerprint,
    check_entry,
    entries_of,
    key_of,
    make_entry,
)
from khop.loader.iteration.virtual_ranks import VirtualRanks


@dataclass
class VirtualProgress(EpochProgress):
    """Progress of an epoch of virtual ranks on one trainer.

    If an earlier job began the epoch, `delivered` counts from `first` on. So at the end of the
    epoch it equals the number of batches of a trainer in a whole epoch.

    Attributes:
        run_keys: key of the random numbers of each virtual rank.
        before: number of batches of each virtual rank that earlier jobs delivered.
        first: value of `delivered` when this job began.
    """

    run_keys: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    first: int = 0


class VirtualCursor(EpochCursor):
    """Position of a loader with virtual ranks in its epochs: tracks, saves and restores it.

    The loader must have a `seed`.
    """

    def __init__(self, keys: EpochKeys, rank: int, ranks: VirtualRanks) -> None:
        super().__init__(keys, rank)
        self._ranks = ranks

    def begin(self) -> VirtualProgress:
        """Begin the next epoch, or the rest of one whose state was loaded."""
        progress, self._next = self._next, None
        if progress is None:
            self._keys.next_run_key()
            progress = self._progress([0] * len(self._ranks.num_batches))
        self._last = progress
        assert isinstance(progress, VirtualProgress)
        return progress

    def _progress(self, before: list[int]) -> VirtualProgress:
        """Return the progress of the epoch that began last.

        `before` has the number of batches of each virtual rank that earlier jobs delivered.
        """
        assert self._keys.seed is not None
        epoch = self._keys.epoch - 1
        run_keys = [_native.run_key(self._keys.seed, epoch, rank) for rank in range(len(before))]
        whole, rest = (self._ranks.length(done, self._rank) for done in ([0] * len(before), before))
        first = whole - rest
        return VirtualProgress(run_keys[0], first, run_keys=run_keys, before=before, first=first)

    def state(self, identities: Sequence[LoaderFingerprint]) -> dict[str, Any]:
        """Return the progress of all virtual ranks as a dictionary for a checkpoint.

        `identities` has the fingerprint of each virtual rank, which is saved with its progress.
        """
        progress = self._next or self._last
        each: list[EpochProgress | None] = [None] * len(identities)
        if progress is not None and not progress.ended:
            assert isinstance(progress, VirtualProgress)
            delivered = self._ranks.advance(progress.before, progress.delivered - progress.first)
            each = list(map(EpochProgress, progress.run_keys, delivered))
        return {
            key_of(rank): make_entry(identity, self._keys.epoch, each[rank])
            for rank, identity in enumerate(identities)
        }

    def load(self, state: Mapping[str, Any], identities: Sequence[LoaderFingerprint]) -> None:
        """Restore the progress of all virtual ranks.

        A loader with the same number of virtual ranks saved `state`. Or it merges (`merge_states`)
        the states of that number of trainers without virtual ranks. `identities` has the
        fingerprint of each virtual rank, which must equal the saved one.

        Raises:
            ValueError: the state lacks an entry of a virtual rank, is another loader's, or its
                trainers were in different epochs.
        """
        entries = entries_of(state)
        if not entries:
            self._last = None
            return
        keys = [key_of(rank) for rank in range(len(identities))]
        if set(entries) != set(keys):
            missing = [key for key in keys if key not in entries]
            raise ValueError(
                f"the state holds {len(entries)} ranks, but this loader has num_virtual_ranks="
                f"{len(keys)}: "
                + (f"{missing} are missing. " if missing else "")
                + "Make the loader with as many virtual ranks as there were (as there were "
                "trainers, if they had none), and merge states that trainers saved one by one with "
                "khop.loader.merge_states"
            )
        for rank, (key, identity) in enumerate(zip(keys, identities, strict=True)):
            try:
                check_entry(entries[key], identity)
            except ValueError as error:
                raise ValueError(f"virtual rank {rank}: {error}") from None
        epochs = {key: entries[key]["epochs"] for key in keys}
        if len(set(epochs.values())) > 1:
            raise ValueError(
                f"trainers were in different epochs: the numbers of epochs begun are {epochs}. "
                "Save the states of all trainers in the same epoch"
            )
        self._last = self._next = None
        self._keys.epoch = epochs[keys[0]]
        if any(entries[key]["run_key"] is not None for key in keys):
            self._next = self._restored([entries[key] for key in keys])

    def _restored(self, entries: Sequence[Mapping[str, Any]]) -> VirtualProgress:
        """Return the progress of an unfinished epoch from the saved entries of its virtual ranks.

        Virtual ranks whose entry has no key had finished the epoch.
        """
        delivered = [
            total if entry["run_key"] is None else entry["delivered"]
            for entry, total in zip(entries, self._ranks.num_batches, strict=True)
        ]
        if self._keys.epoch > 0:
            progress = self._progress(delivered)
            keys = zip(entries, progress.run_keys, strict=True)
            if all(entry["run_key"] in (None, own) for entry, own in keys):
                return progress
        raise ValueError("the state is damaged: its run keys are not those of seed and epoch")
