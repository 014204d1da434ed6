"""Requests of trainers to the tensors of a part, and the first values of rows. Imports no torch."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np

from khop.channel.arena import map_memory
from khop.codec import AtMost, Between, Id, Word
from khop.data import RowFormat
from khop.data.arrays import storage_dtype
from khop.typing import Array, ArrayLike, Int64Array, RowInit, UInt64Array

GRADIENT = "gradient"
"""Operation of a push of float32 gradients, which an optimiser applies at the end of the step."""

Rule = Literal["sgd", "adagrad", "rowwise_adagrad", "adam"]

# Names of `khop.data.arrays.DTYPES`, which a type cannot be made of.
Dtype = Literal[
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "bfloat16",
]  # fmt: skip
TensorName = Annotated[str, AtMost(256)]
Count = Annotated[int, Between(0, 2**53)]

JobName = Annotated[str, AtMost(128)]
Token = Annotated[str, AtMost(64)]
ClientRank = Annotated[int, Between(0, 65_535)]

HELD_BYTES = 1 << 30
"""Maximum bytes of pushes that a part holds until the end of their step."""

STAGED_BYTES = 256 << 20
"""Bytes of a staging area: shared memory of a part for the values of one trainer's pushes."""

STAGED_ALIGNMENT = 64
"""Values of a push begin at a multiple of this offset of a staging area."""

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class TensorSpec:
    """Description of a tensor.

    Attributes:
        element: 'node' or 'edge'.
        type_index: index of the node or edge type.
        dtype: name of the values' dtype.
        shape: shape of a row.
        seed: seed of normally distributed first values. If None, the first values are zeros.
        cache_bytes: bytes of the cache of a part whose rows are on disk. If None, all rows are in
            memory.
    """

    element: Literal["node", "edge"]
    type_index: Id
    dtype: Dtype
    shape: Annotated[list[Annotated[int, Between(0, 2**31)]], AtMost(8)]
    seed: Word | None = None
    cache_bytes: Count | None = None

    @property
    def rows(self) -> RowFormat:
        """Format of a row."""
        return RowFormat(self.dtype, tuple(self.shape))


@dataclass(frozen=True)
class Sender:
    """Sender of a request to the store of a job, at graph servers.

    Partition servers have one store, whose requests have no sender.

    Attributes:
        job: name of the job.
        token: secret of a trainer of the job. '' if the sender only reads.
    """

    job: JobName
    token: Token = ""


@dataclass(frozen=True)
class JobMember:
    """Trainer of a job, a client of graph servers.

    Attributes:
        rank: rank of the client in the directory.
        incarnation: incarnation of the client in the directory.
        token: hash of the trainer's token.
    """

    rank: ClientRank
    incarnation: Token
    token: Token


@dataclass(frozen=True)
class OpenStore:
    """Request for a store of a new job. It ends when all of its members have left or are lost.

    Attributes:
        members: the trainers of the job, by their rank in the job.
    """

    op: ClassVar[str] = "open_store"

    sender: Sender
    members: Annotated[list[JobMember], AtMost(2048)]


@dataclass(frozen=True)
class CloseStore:
    """Notice that a trainer needs the store of its job no more."""

    op: ClassVar[str] = "close_store"

    sender: Sender


@dataclass(frozen=True)
class DescribeStore:
    """Request for the tensors of a store. The reply is JSON text of `{name: TensorSpec}`, uint8."""

    op: ClassVar[str] = "describe_store"

    sender: Sender | None = None


@dataclass(frozen=True)
class CreateTensor:
    """Request for a new tensor. Its name must not be in use."""

    op: ClassVar[str] = "create_tensor"

    name: TensorName
    spec: TensorSpec
    sender: Sender | None = None


@dataclass(frozen=True)
class DeleteTensor:
    """Request that ends a tensor, with its pushes of the step."""

    op: ClassVar[str] = "delete_tensor"

    name: TensorName
    sender: Sender | None = None


@dataclass(frozen=True)
class PushRows:
    """Request to change rows. Arrays: [n] int64 rows of the part, and pieces of [n, *shape] values.

    Attributes:
        step: the step at whose end the rows change. If None, they change at once.
        rank: rank of the trainer.
        position: position of the push among the trainer's pushes.
        area: staging area with all values. If None, the message has them.
        offset: offset of the values in the area, in bytes.
    """

    op: ClassVar[str] = "push_rows"

    name: TensorName
    reduce: Literal["set", "add", "min", "max", "gradient"]
    step: Count | None
    rank: Count
    position: Count
    area: Count | None = None
    offset: Count = 0
    sender: Sender | None = None


@dataclass(frozen=True)
class RowUpdate:
    """Update of a tensor's rows by the gradients that were pushed in a step.

    Attributes:
        name: the tensor, of float32 or bfloat16.
        rule: formula of the update.
        states: names of the tensors with the rule's state.
        rate: learning rate, with the corrections of the step.
        epsilon, beta1, beta2: constants of the rule.
        scale: factor of the sums of gradients.
    """

    name: TensorName
    rule: Rule
    states: Annotated[list[TensorName], AtMost(2)]
    rate: float
    epsilon: float
    beta1: float
    beta2: float
    scale: float


@dataclass(frozen=True)
class EndStep:
    """Request to apply all pushes of a step. Sent once per part, when all pushes have arrived.

    Attributes:
        step: the step.
        updates: updates of tensors by gradients.
    """

    op: ClassVar[str] = "end_step"

    step: Count
    updates: Annotated[list[RowUpdate], AtMost(4096)] = field(default_factory=list)
    sender: Sender | None = None


@dataclass(frozen=True)
class SetVersion:
    """Request to count versions from another number, after a checkpoint was loaded.

    Readers of the store get the version with rows. It grows by one with each step.
    """

    op: ClassVar[str] = "set_version"

    version: Count
    sender: Sender | None = None


@dataclass(frozen=True)
class ReadStep:
    """Request for the number of completed steps. The reply is [1] int64."""

    op: ClassVar[str] = "read_step"

    sender: Sender | None = None


@dataclass(frozen=True)
class ShareTensor:
    """Request of a trainer on the server's host for a tensor's memory.

    The reply is [2] int64: the server's process, and its descriptor of the memory. For rows on disk
    the descriptor is -1.
    """

    op: ClassVar[str] = "share_tensor"

    name: TensorName
    sender: Sender | None = None


@dataclass(frozen=True)
class MakeStagingArea:
    """Request of a trainer on the server's host for memory for the values of its pushes.

    The reply is [3] int64: the server's process, its descriptor, and the area's index.
    """

    op: ClassVar[str] = "make_staging_area"


@dataclass(frozen=True)
class PullRows:
    """Request for rows of a tensor. Arrays: [n] int64 rows of the part.

    Attributes:
        with_step: wait for the end of a step that is being applied. The reply then also has the
            number of completed steps and the version, [2] int64.
    """

    op: ClassVar[str] = "pull_rows"

    name: TensorName
    with_step: bool = False
    sender: Sender | None = None


def rows_in(memory: int, count: int, rows: RowFormat) -> Array:
    """Map the memory of a tensor's rows, [count, *rows.shape]. `memory` is its descriptor.

    Raises:
        ValueError: the memory is shorter.
        ProtocolError: it is no memory of a fixed size.
        OSError: it cannot be mapped.
    """
    values = np.frombuffer(
        map_memory(memory), storage_dtype(rows.dtype), count * math.prod(rows.shape)
    )
    return values.reshape(count, *rows.shape)


def first_values(init: RowInit) -> tuple[int | None, ArrayLike | None]:
    """Return the seed of normal values, and the values, of which one or both are None."""
    if isinstance(init, str):
        if init != "zeros":
            raise ValueError(f"init must be 'zeros', ('normal', seed) or values (got {init!r})")
        return None, None
    if isinstance(init, tuple) and len(init) == 2 and init[0] == "normal":
        return operator.index(init[1]), None  # type: ignore[arg-type]
    return None, init  # type: ignore[return-value]


def normal_rows(seed: int, ids: Int64Array, rows: RowFormat) -> Array:
    """Return normally distributed rows that depend on the seed and the rows' original ids alone.

    Args:
        seed: 0 to 2^64 - 1.
        ids: [n] int64 original ids.
        rows: format of a row, of floating-point numbers.

    Returns:
        [n, *rows.shape] with mean 0 and variance 1. Method: SplitMix64 (Steele, Lea and Flood,
        2014) of seed, id and column, and the transform of Box and Muller.
    """
    width = math.prod(rows.shape)
    count = np.uint64(2) * (
        ids.astype(np.uint64)[:, None] * np.uint64(width) + np.arange(width, dtype=np.uint64)
    )
    start = _mixed(np.array([seed], np.uint64))
    first, second = (
        _mixed(start + (count + np.uint64(half) + np.uint64(1)) * _GOLDEN) >> np.uint64(11)
        for half in (0, 1)
    )
    radius = np.sqrt(-2.0 * np.log((first + np.uint64(1)) * 2.0**-53))
    values = radius * np.cos(2.0 * np.pi * (second * 2.0**-53))
    return stored_numbers(values.reshape(len(ids), *rows.shape), rows.dtype)


def _mixed(words: UInt64Array) -> UInt64Array:
    words = (words ^ (words >> np.uint64(30))) * _MIX[0]
    words = (words ^ (words >> np.uint64(27))) * _MIX[1]
    words ^= words >> np.uint64(31)
    return words


def stored_numbers(values: Array, dtype: str) -> Array:
    """Convert numbers to the storage of a dtype. bfloat16 is rounded to nearest, ties to even."""
    if dtype != "bfloat16":
        return values.astype(storage_dtype(dtype))
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
