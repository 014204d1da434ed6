"""Resuming after a stop: the progress of a loader as a small dictionary. Runs in the trainer.

A batch is a function of its epoch's key, its index and its seeds. So a loader stores no batches
that it has delivered or prefetched. The epoch's key and the number of delivered batches are enough.
`EpochCursor` makes an `EpochProgress` for each epoch, which the epoch's iterator updates when it
delivers a batch (`iterator`). `EpochCursor.state` saves the progress of the last epoch
with a fingerprint of the loader, and `EpochCursor.load` restores it into another cursor.
A user's own samplers have their own state: see `replay`. A loader with virtual ranks has an entry
of the same form for each of them: see `virtual_cursor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from khop.loader.iteration.epochs import EpochKeys
from khop.loader.iteration.replay import Replay, pack, unpack

VERSION = 1
"""Version of the format that `state_dict` returns."""

_PREFIX = "rank-"  # of keys, one for each trainer or virtual rank


@dataclass
class EpochProgress:
    """Progress of an epoch, which the iterator updates and a checkpoint saves.

    Attributes:
        run_key: key of the epoch's random numbers.
        delivered: number of batches that the user has received.
        failed: number of failed batches after the last delivered one. A resumed loader makes them
            again, unless a later batch is delivered.
        ended: True after the end of the epoch was reported to the user.
        replay: saved state of a user's own sampler. None without one, or before its first batch.
    """

    run_key: int
    delivered: int = 0
    failed: int = 0
    ended: bool = False
    replay: Replay | None = None

    def deliver(self) -> None:
        """Count a delivered batch, and failed ones before it, which the user has skipped."""
        passed, self.failed = 1 + self.failed, 0
        self.delivered += passed
        if self.replay is not None:
            self.replay.deliver(passed)

    def fail(self) -> None:
        """Count a failed batch, for which the user got an exception."""
        self.failed += 1

    def end(self) -> None:
        """Mark the epoch as ended, unless its last batches failed."""
        self.ended = not self.failed


@dataclass(frozen=True)
class LoaderFingerprint:
    """Properties of a loader that a saved state records.

    The loader that loads it must have the same.

    Attributes:
        seeds: digest of the seeds or links.
        sampling: digest of the options of sampling, and of the graph's size. None for a sampler
            that is not khop's.
        batch_size, drop_last, shuffle, seed, stream: the loader's arguments.
        num_batches: number of batches in an epoch. None if a user's own sampler determines it.
    """

    seeds: str
    sampling: str | None
    batch_size: int | None
    drop_last: bool
    shuffle: bool
    seed: int | None
    stream: int
    num_batches: int | None


_DESCRIBED = {
    "seeds": "other seeds or links (for shares of a job of another size, see num_virtual_ranks)",
    "sampling": "another graph, or other options of sampling (num_neighbors, replace, ...)",
}


class EpochCursor:
    """Position of a loader in its epochs: tracks, saves and restores it. Each loader has one.

    One checkpoint may hold the states of all trainers, and has one value per key. So each rank's
    state has its own key.
    """

    def __init__(self, keys: EpochKeys, rank: int) -> None:
        self._keys = keys
        self._rank = rank
        self._last: EpochProgress | None = None
        self._next: EpochProgress | None = None

    def begin(self) -> EpochProgress:
        """Begin the next epoch, or the rest of one whose state was loaded."""
        progress, self._next = self._next, None
        if progress is None:
            progress = EpochProgress(self._keys.next_run_key())
        self._last = progress
        return progress

    def state(self, identities: Sequence[LoaderFingerprint]) -> dict[str, Any]:
        """Return the progress as a dictionary for a checkpoint.

        `identities` has the loader's fingerprint, which is saved with the progress.
        """
        (identity,) = identities
        progress = self._next or self._last
        if progress is not None and progress.ended:
            progress = None
        entry = make_entry(identity, self._keys.epoch, progress, self._generator_state())
        return {key_of(self._rank): entry}

    def load(self, state: Mapping[str, Any], identities: Sequence[LoaderFingerprint]) -> None:
        """Restore the progress from what `state` returned.

        `identities` has the loader's fingerprint, which must equal the saved one.

        Raises:
            TypeError, ValueError: the state is malformed, or another loader's.
        """
        (identity,) = identities
        entries = entries_of(state)
        if not entries:
            self._last = None
            return
        entry, is_own = self._entry(entries, identity)
        check_entry(entry, identity, is_own)
        self._last = self._next = None
        self._keys.epoch = entry["epochs"]
        if entry["generator"] is not None and self._keys.generator is not None:
            self._keys.generator.set_state(unpack(entry["generator"]))
        if entry["run_key"] is not None:
            run_key = entry["run_key"] if is_own else self._keys.last_run_key()
            replay = None
            if entry["sampler_digest"] is not None:
                replay = Replay(
                    entry["sampler_generator"], entry["sampler_state"], entry["sampler_digest"]
                )
            self._next = EpochProgress(run_key, entry["delivered"], replay=replay)

    def _entry(
        self, entries: Mapping[str, Mapping[str, Any]], identity: LoaderFingerprint
    ) -> tuple[Mapping[str, Any], bool]:
        """Return the saved entry to load. The second value is True if it is this trainer's own.

        Some frameworks save only the first trainer's entry. All load it then if loaders have a
        `seed`.
        """
        key = key_of(self._rank)
        if len(entries) > 1 and key not in entries:
            raise ValueError(
                f"the state holds trainers {list(entries)}, but this is trainer {self._rank}: go "
                "on with as many trainers as there were, or make distributed loaders with "
                f"num_virtual_ranks={len(entries)} and the seeds of all trainers"
            )
        entry = entries[key] if key in entries else next(iter(entries.values()))
        own = (identity.seeds, identity.stream)
        if key in entries or (entry.get("seeds"), entry.get("stream")) == own:
            return entry, True
        # Some frameworks save only the first trainer's state. Trainers are in step, and keys of
        # epochs follow from the seed: this is enough for the other trainers.
        has_user_sampler = (
            entry.get("num_batches") is None or entry.get("sampler_digest") is not None
        )
        if identity.seed is None or has_user_sampler:
            raise ValueError(
                f"the state is that of {next(iter(entries))} alone, but this is trainer "
                f"{self._rank}: keep the state of every trainer, or make the loaders with seed="
            )
        return entry, False

    def _generator_state(self) -> str | None:
        """Return the state of the user's `generator` as text.

        None if epochs' keys do not come from it.
        """
        generator = self._keys.generator
        if self._keys.seed is not None or generator is None:
            return None
        return pack(generator.get_state())


def key_of(rank: int) -> str:
    """Return the key under which a state holds the entry of this rank: 'rank-0', 'rank-1', ..."""
    return f"{_PREFIX}{rank}"


def make_entry(
    identity: LoaderFingerprint,
    epochs: int,
    progress: EpochProgress | None,
    generator: str | None = None,
) -> dict[str, Any]:
    """Return a rank's entry of a saved state: plain values that describe its progress.

    `epochs` epochs have begun. If `progress` is None, none is in progress. `generator` is the state
    of the user's generator as text.
    """
    replay = None if progress is None else progress.replay
    return {
        "version": VERSION,
        **vars(identity),
        "epochs": epochs,
        "run_key": None if progress is None else progress.run_key,
        "delivered": 0 if progress is None else progress.delivered,
        "generator": generator,
        "sampler_digest": None if replay is None else replay.digest,
        "sampler_generator": None if replay is None else replay.generator,
        "sampler_state": None if replay is None else replay.state,
    }


def entries_of(state: Any) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a saved state, by the keys of their ranks.

    Raises:
        TypeError: the state is not a dictionary.
        ValueError: it is not the state of a loader.
    """
    if not isinstance(state, Mapping):
        raise TypeError(
            f"a loader's state is what state_dict() returned (got '{type(state).__name__}')"
        )
    for key, value in state.items():
        if not str(key).startswith(_PREFIX) or not isinstance(value, Mapping):
            raise ValueError(
                f"this is no state of a loader: keys are '{_PREFIX}<rank>' (got {list(state)})"
            )
    return dict(state)


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states that all trainers of a job saved one by one into one state.

    A job with the same number of trainers can load the result. A job of another size can load it if
    its loaders have the same `num_virtual_ranks` as the saved ones. If the saved loaders had no
    virtual ranks, `num_virtual_ranks` must be their number of trainers. A file that holds the
    states of all trainers, as `torch.distributed.checkpoint` writes it, need not be merged.

    Args:
        states: results of `state_dict`, in any order.

    Raises:
        TypeError: a state is not a dictionary.
        ValueError: a state is not a loader's, states of the same rank differ, a rank is missing, or
            states are of different loaders or epochs.

    Example:
        >>> loaders = [NeighborLoader(data, [2], seed=0), NeighborLoader(data, [2], seed=0)]
        >>> merge_states(loader.state_dict() for loader in loaders).keys()
        dict_keys(['rank-0'])
    """
    merged: dict[str, Mapping[str, Any]] = {}
    for state in states:
        for key, entry in entries_of(state).items():
            difference = _difference(merged.setdefault(key, entry), entry)
            if difference:
                raise ValueError(
                    f"two states differ in '{key}': {difference}. They are of different loaders, "
                    "or not of the same step: each trainer has to save its state after equally "
                    "many batches"
                )
    keys = [key_of(rank) for rank in range(len(merged))]
    if set(merged) != set(keys):
        raise ValueError(
            f"the states are those of {sorted(merged)}: merge the states of all trainers, whose "
            f"ranks begin at 0 and have no gaps"
        )
    for key in keys[1:]:
        for name in _OF_THE_JOB:
            if merged[key].get(name) != merged[keys[0]].get(name):
                raise ValueError(
                    f"the states of '{keys[0]}' and '{key}' do not belong together: {name} is "
                    f"{merged[keys[0]].get(name)!r} and {merged[key].get(name)!r}"
                )
    return {key: merged[key] for key in keys}


# Entries that are equal for all trainers of a job.
_OF_THE_JOB = ("version", "sampling", "batch_size", "drop_last", "shuffle", "seed", "epochs")


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    named = {*one, *other} - {"sampler_state"}  # which may hold tensors. The digest is enough
    names = sorted(name for name in named if one.get(name) != other.get(name))
    return ", ".join(f"{name} is {one.get(name)!r} and {other.get(name)!r}" for name in names)


_POSITION = (
    *("epochs", "run_key", "delivered", "generator"),
    *("sampler_digest", "sampler_generator", "sampler_state"),
)


def differences(saved: Mapping[str, Any], own: Mapping[str, Any], names: Iterable[str]) -> str:
    """Describe the values in which a saved fingerprint differs from a loader's own."""
    return "; ".join(
        _DESCRIBED.get(name, f"{name}={saved.get(name)!r} (here {own[name]!r})") for name in names
    )


def check_entry(entry: Mapping[str, Any], identity: LoaderFingerprint, is_own: bool = True) -> None:
    """Raise ValueError if a saved entry is damaged, or a loader with another fingerprint wrote it.

    `is_own` says that the same trainer's loader wrote it, so that seeds and stream are compared,
    too.
    """
    if entry.get("version") != VERSION:
        raise ValueError(
            f"the state is of version {entry.get('version')}, this khop reads version {VERSION}: "
            "load it with the version of khop that wrote it"
        )
    expected = vars(identity)
    names = [n for n in expected if is_own or n not in ("seeds", "stream")]
    missing = [name for name in (*expected, *_POSITION) if name not in entry]
    if missing:
        raise ValueError(f"the state is damaged: it has no {missing}")
    wrong = [name for name in names if entry[name] != expected[name]]
    if wrong:
        raise ValueError(
            f"the state is that of another loader, which had {differences(entry, expected, wrong)}"
            ". Make the loader as it was, or begin anew without the state"
        )
    for name, limit in (("epochs", None), ("run_key", 2**64), ("delivered", None)):
        value = entry[name]
        if value is None and name == "run_key":
            continue
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or value < 0 or (limit is not None and value >= limit):
            raise ValueError(f"the state is damaged: {name} is {value!r}")
    if identity.num_batches is not None and entry["delivered"] > identity.num_batches:
        raise ValueError(
            f"the state is damaged: {entry['delivered']} batches of {identity.num_batches}"
        )
