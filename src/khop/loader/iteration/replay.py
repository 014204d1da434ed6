"""Replay of an epoch with a user's own `sampler` or `batch_sampler`. Runs in the trainer.

Such a sampler is read ahead of delivery, and its output may depend on a generator or on its own
state. `Replay` keeps this state as of the start of the epoch, and a digest of the delivered
batches. To resume in the middle of an epoch, it restores the state and reads the epoch's batches
from the first. Up to the last delivered batch, the digest must be the same as before.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import itertools
import reprlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from khop.typing import Int64Array


class Replay:
    """Saved state of a user's own sampler, from which it yields an epoch's batches again.

    Args:
        generator: state, at the start of the epoch, of the generator that the sampler draws from.
            If None, the sampler has its own `state_dict`.
        state: the sampler's `state_dict` at the start of the epoch, or None.
        digest: digest of the batches that have been delivered.
    """

    def __init__(self, generator: str | None, state: Any, digest: str = "") -> None:
        self.generator = generator
        self.state = state
        self.digest = digest
        self._read = digest  # digest of the batches read from the sampler
        self._ahead: deque[str] = deque()  # digest after each batch not yet delivered

    @classmethod
    def at_the_beginning(cls, batches: Iterable[Any]) -> Replay:
        """Save the state of a user's sampler before the first of its `batches` is read."""
        samplers = _chain(batches)
        owner = _stateful(samplers)
        if owner is not None:
            return cls(None, copy.deepcopy(owner.state_dict()))
        return cls(pack(_generator(samplers).get_state()), None)

    def add(self, positions: Int64Array) -> None:
        """Record a batch that was read from the sampler: [n] positions in the loader's input."""
        self._read = _next_digest(self._read, positions)
        self._ahead.append(self._read)

    def deliver(self, count: int) -> None:
        """Count the next `count` recorded batches as delivered."""
        for _ in range(min(count, len(self._ahead))):
            self.digest = self._ahead.popleft()

    def rest(self, batches: Iterable[Any], delivered: int) -> Iterator[Any]:
        """Restore the sampler's state, and return the epoch's batches that were not delivered.

        The `delivered` first of the sampler's `batches` are read and compared with the saved
        digest.

        Raises:
            ValueError: the sampler's first batches differ from the ones that were delivered.
        """
        samplers = _chain(batches)
        owner = _stateful(samplers)
        with contextlib.ExitStack() as stack:
            if owner is not None and self.state is not None:
                owner.load_state_dict(copy.deepcopy(self.state))
            elif self.generator is not None:
                stack.enter_context(_set_back(_generator(samplers), unpack(self.generator)))
            again = iter(batches)
            seen = ""
            for batch in itertools.islice(again, delivered):
                seen = _next_digest(seen, positions_of(batch))
            # Many samplers draw when their first batch is read.
            upcoming = list(itertools.islice(again, 1))
        if seen != self.digest:
            raise ValueError(
                f"the sampler names other seeds for the first {delivered} batches of the epoch "
                "than before the stop, so that some would be lost and others come twice: set it "
                "back as it was (set_epoch, its seed), give it state_dict() and load_state_dict(), "
                "or let it draw from a torch.Generator kept as its attribute `generator`"
            )
        self._read = self.digest
        return itertools.chain(upcoming, again)


def _chain(batches: Any) -> list[Any]:
    """Return a batch sampler, its attribute `sampler`, that one's `sampler`, and so on."""
    chain = [batches]
    while (inner := getattr(chain[-1], "sampler", None)) is not None and len(chain) < 8:
        chain.append(inner)
    return chain


def _stateful(samplers: list[Any]) -> Any:
    """Return the first sampler that has `state_dict` and `load_state_dict`, or None."""
    methods = "state_dict", "load_state_dict"
    return next((s for s in samplers if all(hasattr(s, name) for name in methods)), None)


def _generator(samplers: list[Any]) -> torch.Generator:
    """Return the generator that samplers draw from: the first `generator` attribute of theirs.

    If none has one, return torch's default generator.
    """
    own = (getattr(sampler, "generator", None) for sampler in samplers)
    return next((g for g in own if isinstance(g, torch.Generator)), torch.default_generator)


@contextlib.contextmanager
def _set_back(generator: torch.Generator, state: Tensor) -> Iterator[None]:
    """Set a generator to `state` for a block. Torch's default generator is restored afterwards."""
    before = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        if generator is torch.default_generator:
            generator.set_state(before)


def positions_of(batch: Any) -> Int64Array:
    """Convert a batch of a user's sampler to [n] int64 positions in the loader's input.

    Raises:
        TypeError: the batch is not a list of integers.
    """
    listed = batch.tolist() if isinstance(batch, Tensor) else batch
    try:
        positions = torch.tensor(listed)
    except (TypeError, ValueError, RuntimeError):
        positions = torch.tensor(0.0)
    is_whole = not (positions.dtype.is_floating_point or positions.dtype.is_complex)
    if positions.dim() != 1 or not (is_whole or positions.numel() == 0):
        raise TypeError(
            "a batch_sampler must name a list of positions for each batch, a sampler one position "
            f"after the other (got {reprlib.repr(batch)})"
        )
    named: Int64Array = positions.long().numpy()
    return named


def _next_digest(before: str, positions: Int64Array) -> str:
    digest = hashlib.blake2b(before.encode(), digest_size=16)
    digest.update(positions.data)
    return digest.hexdigest()


def pack(state: Tensor) -> str:
    """Return the state of a torch generator as base64 text, for JSON."""
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def unpack(text: str) -> Tensor:
    """Return the generator's state (uint8 tensor) that `pack` made a text of."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
