"""Going on after a stop: how far a loader has come, as a small dictionary.

A batch is a function of its epoch's key, its number and its seeds. So a loader need not remember
what it has delivered or made ahead: the key of the epoch and the number of batches that the user
has seen are enough. `EpochCursor` makes an `EpochProgress` for each epoch, which the epoch's
iterator moves on as batches are handed out; `EpochCursor.state` writes down the one that was begun
last, with what tells the loader from others, and `EpochCursor.load` prepares another course to go
on there.
Samplers that users bring along have a memory of their own: see `khop.loader.replay`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from khop.loader.epochs import EpochKeys
from khop.loader.replay import Replay, pack, unpack

VERSION = 1
"""Of what `state_dict` returns."""

_PREFIX = "rank-"  # of the keys that tell trainers apart


@dataclass
class EpochProgress:
    """How far an epoch has come.

    Attributes:
        run_key: of the epoch's draws.
        delivered: number of batches that the user has been given.
        failed: number of batches that went wrong since: due again, unless others follow them.
        ended: the user has been told that there are no more.
        replay: how to ask a user's own sampler for the epoch's batches once more; None: there is no
            such sampler, or it has not been asked yet.
    """

    run_key: int
    delivered: int = 0
    failed: int = 0
    ended: bool = False
    replay: Replay | None = None

    def deliver(self) -> None:
        """Counts a batch that is handed out now, and those that the user has done without."""
        passed, self.failed = 1 + self.failed, 0
        self.delivered += passed
        if self.replay is not None:
            self.replay.deliver(passed)

    def fail(self) -> None:
        """Counts a batch in whose place an exception is raised."""
        self.failed += 1

    def end(self) -> None:
        """Notes that the user is told that there are no more batches."""
        self.ended = not self.failed


@dataclass(frozen=True)
class LoaderFingerprint:
    """What a loader must have in common with the one whose state it takes over.

    Attributes:
        seeds: digest of the seeds or links.
        sampling: digest of what is drawn for them, and of the graph's size.
        batch_size, drop_last, shuffle, seed, stream: as the loader was given them.
        num_batches: of an epoch; None: only a user's own sampler knows.
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
    "seeds": "other seeds or links",
    "sampling": "another graph, or other options of sampling (num_neighbors, replace, ...)",
}


class Stateful:
    """A loader that can write down how far it has come."""

    _cursor: EpochCursor

    def _identity(self) -> LoaderFingerprint:
        """What the loader must have in common with one whose state it takes over."""
        raise NotImplementedError

    def _check_resumable(self) -> None:
        """Raises ValueError if the number of batches does not tell which they were."""

    def state_dict(self) -> dict[str, Any]:
        """How far the loader has come: a small dictionary of plain values, for checkpoints.

        It is that of the epoch that was begun last. Batches count when they are handed out, not
        when they are made ahead. Keys are always the same and differ between trainers, so that the
        states of all may lie in one checkpoint of `torch.distributed.checkpoint`. Names and meaning
        are those of torchdata's `StatefulDataLoader`; asking for the state changes nothing.

        Raises:
            ValueError: torch's workers deliver batches in any order (`in_order=False`).
        """
        self._check_resumable()
        return self._cursor.state(self._identity())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Lets the next epoch go on where a loader like this one was.

        The next iterator makes the batches that had not been handed out, bit for bit, whatever the
        number and kind of workers and of partitions; none, if only the end had not been reached.
        Where no epoch was under way a new one begins. Later epochs follow: with a given `seed`, or
        a `generator` (whose state is set back), they are those of a run without a stop. If torch's
        default generator decides, restore its state, too, for the epochs after the next.

        A trainer that finds nothing but the state of another one (some frameworks keep that of the
        first trainer only) goes by it if a `seed` is given: trainers of a job are in step.

        Args:
            state_dict: what `state_dict` returned: of a loader with the same seeds, options of
                sampling, batch size, order and seed, in memory or distributed. An empty
                dictionary loads nothing.

        Raises:
            TypeError: no dictionary.
            ValueError: the state of another loader; says what differs. When batches are asked for:
                a `sampler` of the user's does not name the seeds that it named before.
        """
        self._check_resumable()
        self._cursor.load(state_dict, self._identity())


class EpochCursor:
    """A loader's way through its epochs.

    Args:
        keys: makes the keys of epochs.
        rank: of this trainer. States of all trainers may lie in one checkpoint; each is kept under
            a key of its own, because checkpoints keep one value a key.
    """

    def __init__(self, keys: EpochKeys, rank: int) -> None:
        self._keys = keys
        self._rank = rank
        self._last: EpochProgress | None = None
        self._next: EpochProgress | None = None

    def begin(self) -> EpochProgress:
        """The epoch that begins now: the next one, or the rest of one whose state was loaded."""
        progress, self._next = self._next, None
        if progress is None:
            progress = EpochProgress(self._keys.next_run_key())
        self._last = progress
        return progress

    def state(self, identity: LoaderFingerprint) -> dict[str, Any]:
        """How far the loader has come; see `Stateful.state_dict`.

        Args:
            identity: of the loader.
        """
        progress = self._next or self._last
        if progress is not None and progress.ended:
            progress = None
        replay = None if progress is None else progress.replay
        entry = {
            "version": VERSION,
            **vars(identity),
            "epochs": self._keys.epoch,
            "run_key": None if progress is None else progress.run_key,
            "delivered": 0 if progress is None else progress.delivered,
            "generator": self._generator_state(),
            "sampler_digest": None if replay is None else replay.digest,
            "sampler_generator": None if replay is None else replay.generator,
            "sampler_state": None if replay is None else replay.state,
        }
        return {f"{_PREFIX}{self._rank}": entry}

    def load(self, state: Mapping[str, Any], identity: LoaderFingerprint) -> None:
        """Prepares to go on where a loader was; see `Stateful.load_state_dict`.

        Args:
            state: what `state` returned.
            identity: of this loader.

        Raises:
            TypeError: no state.
            ValueError: a state of another version or another loader.
        """
        if not isinstance(state, Mapping):
            raise TypeError(
                f"a loader's state is what state_dict() returned (got '{type(state).__name__}')"
            )
        if not state:
            self._last = None
            return
        entry, is_own = self._entry(state, identity)
        _check(entry, identity, is_own)
        self._last = self._next = None
        self._keys.epoch = entry["epochs"]
        if entry["generator"] is not None and self._keys.generator is not None:
            self._keys.generator.set_state(unpack(entry["generator"]))
        if entry["run_key"] is not None:
            run_key = entry["run_key"] if is_own else self._keys.last_run_key()
            self._next = EpochProgress(run_key, entry["delivered"], replay=_replay(entry))

    def _entry(
        self, state: Mapping[str, Any], identity: LoaderFingerprint
    ) -> tuple[Mapping[str, Any], bool]:
        """The entry to go by, and whether a loader with this one's seeds and stream wrote it."""
        entries = {
            key: value
            for key, value in state.items()
            if str(key).startswith(_PREFIX) and isinstance(value, Mapping)
        }
        if not entries or len(entries) < len(state):
            raise ValueError(
                f"this is no state of a loader: keys are '{_PREFIX}<rank>' (got {list(state)})"
            )
        key = f"{_PREFIX}{self._rank}"
        if len(entries) > 1 and key not in entries:
            raise ValueError(
                f"the state holds trainers {list(entries)}, but this is trainer {self._rank}: go "
                "on with as many trainers as there were"
            )
        entry = entries[key] if key in entries else next(iter(entries.values()))
        own = (identity.seeds, identity.stream)
        if key in entries or (entry.get("seeds"), entry.get("stream")) == own:
            return entry, True
        # Some frameworks keep the first trainer's state alone. Trainers are in step, and keys of
        # epochs follow from the seed: that is enough for the others.
        if identity.seed is None or _is_given(entry):
            raise ValueError(
                f"the state is that of {next(iter(entries))} alone, but this is trainer "
                f"{self._rank}: keep the state of every trainer, or make the loaders with seed="
            )
        return entry, False

    def _generator_state(self) -> str | None:
        """State of the generator that the next keys come from; torch's own is left to the user."""
        generator = self._keys.generator
        if self._keys.seed is not None or generator is None:
            return None
        return pack(generator.get_state())


def _is_given(entry: Mapping[str, Any]) -> bool:
    return entry.get("num_batches") is None or entry.get("sampler_digest") is not None


def _check(entry: Mapping[str, Any], identity: LoaderFingerprint, is_own: bool) -> None:
    """Raises ValueError unless the loader that wrote a state was like this one."""
    if entry.get("version") != VERSION:
        raise ValueError(
            f"the state is of version {entry.get('version')}, this khop reads version {VERSION}: "
            "load it with the version of khop that wrote it"
        )
    wanted = vars(identity)
    names = [n for n in wanted if is_own or n not in ("seeds", "stream")]
    missing = [name for name in (*wanted, *_PLACE) if name not in entry]
    if missing:
        raise ValueError(f"the state is damaged: it has no {missing}")
    wrong = [name for name in names if entry[name] != wanted[name]]
    if wrong:
        raise ValueError(
            "the state is that of another loader, which had "
            + "; ".join(_DESCRIBED.get(n, f"{n}={entry[n]!r} (here {wanted[n]!r})") for n in wrong)
            + ". Make the loader as it was, or begin anew without the state"
        )
    _check_place(entry, identity)


_PLACE = (
    "epochs",
    "run_key",
    "delivered",
    "generator",
    "sampler_digest",
    "sampler_generator",
    "sampler_state",
)


def _check_place(entry: Mapping[str, Any], identity: LoaderFingerprint) -> None:
    """Raises ValueError for a place that no loader can be at."""
    for name, limit in (("epochs", None), ("run_key", 2**64), ("delivered", None)):
        value = entry[name]
        if value is None and name == "run_key":
            continue
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number or value < 0 or (limit is not None and value >= limit):
            raise ValueError(f"the state is damaged: {name} is {value!r}")
    if identity.num_batches is not None and entry["delivered"] > identity.num_batches:
        raise ValueError(
            f"the state is damaged: {entry['delivered']} batches of {identity.num_batches}"
        )


def _replay(entry: Mapping[str, Any]) -> Replay | None:
    if entry["sampler_digest"] is None:
        return None
    return Replay(entry["sampler_generator"], entry["sampler_state"], entry["sampler_digest"])
