"""Division of a table's rows among the memories of several devices and of the host.

The hottest rows lie on each device, the next ones on one device each, in turn, and the others on
the host.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from khop.data.hot_rows import hottest_rows, rows_in_budget, rows_in_share
from khop.typing import Int64Array


class Rates(NamedTuple):
    """Rates at which a GPU reads rows, in GB/s. Only their ratios matter.

    Attributes:
        device: from its own memory.
        peer: from the memory of another GPU.
        host: from host memory.

    Example:
        >>> Rates().peer
        300.0
    """

    device: float = 3000.0
    peer: float = 300.0
    host: float = 50.0


_RATES = Rates()


class Division(NamedTuple):
    """Division of a table's rows.

    Attributes:
        rows: [n] ids of the rows in device memory, hottest first. If None, all rows, by id.
        num_devices: number of devices.
        replicated: number of the first rows that lie on each device. Row p of the others lies on
            device (p - replicated) % num_devices alone.
        expected: expected shares of a batch's rows that come from the device's own memory, from
            its peers', and from the host's.
    """

    rows: Int64Array | None
    num_devices: int
    replicated: int
    expected: tuple[float, float, float]

    def part(self, device: int, num_rows: int) -> Int64Array:
        """Return ids of the rows in a device's memory, in their order. The table has `num_rows`."""
        rows = np.arange(num_rows) if self.rows is None else self.rows
        shared = rows[self.replicated :]
        return np.concatenate([rows[: self.replicated], shared[device :: self.num_devices]])


class Shards(NamedTuple):
    """Report of a table that several GPUs hold together.

    Attributes:
        device_bytes: bytes of rows in the memory of each GPU.
        replicated: number of rows that lie on each GPU.
        sharded: number of rows that lie on one GPU each.
        on_host: number of rows in host memory only.
        own: expected share of a batch's rows that come from the GPU's own memory.
        peer: expected share from other GPUs' memory.
        host: expected share from host memory.

    Example:
        >>> Shards([400, 400], replicated=0, sharded=200, on_host=0, own=0.5, peer=0.5, host=0.0)[1]
        0
    """

    device_bytes: list[int]
    replicated: int
    sharded: int
    on_host: int
    own: float
    peer: float
    host: float


def shards_of(division: Division, num_rows: int, row_bytes: int) -> Shards:
    """Return the report of a division of a table of `num_rows` rows of `row_bytes` bytes."""
    count = num_rows if division.rows is None else len(division.rows)
    shared, devices = count - division.replicated, division.num_devices
    parts = [division.replicated + -(-(shared - i) // devices) for i in range(devices)]
    sizes = [rows * row_bytes for rows in parts]
    return Shards(sizes, division.replicated, shared, num_rows - count, *division.expected)


def on_host(num_devices: int) -> Division:
    """Return the division by which all rows are in host memory."""
    return Division(np.empty(0, np.int64), num_devices, 0, (0.0, 0.0, 1.0))


def divide_rows(
    num_rows: int,
    row_bytes: int,
    num_devices: int,
    split_ratio: float | None = None,
    budget: int | str | None = None,
    hotness: npt.NDArray[np.float64] | None = None,
    rates: Rates = _RATES,
) -> Division:
    """Divide a table's rows among devices and the host.

    Without `split_ratio` and `budget`, each row lies on one device. With `split_ratio` so do the
    hottest ones of this share. With `budget`, a number of rows is replicated. Each further
    replicated row saves reads from peers. It takes room from the coldest rows in device memory,
    one on each other device, which are read from the host then. The sum of all times is least
    where the two balance.

    Args:
        num_rows: number of rows.
        row_bytes: bytes of a row.
        num_devices: number of devices.
        split_ratio: share of the rows that lie in device memory. If None, see above.
        budget: bytes of each device's memory, or a text such as '2GB'. If None, see above.
        hotness: [num_rows] probability that a batch needs each row.
        rates: rates of reads.

    Raises:
        ValueError: there is no hotness, but the hottest rows are to be chosen.
    """
    count = num_rows if split_ratio is None else rows_in_share(split_ratio, num_rows)
    capacity, fits = num_rows, count == num_rows
    if budget is not None:
        capacity = rows_in_budget(budget, num_rows, row_bytes)
        fits = rows_in_budget(budget, num_rows, row_bytes, num_devices) == num_rows
    if num_devices > 1 and budget is not None and capacity == num_rows:
        return Division(None, num_devices, num_rows, (1.0, 0.0, 0.0))
    each = Division(None, num_devices, 0, (1 / num_devices, 1 - 1 / num_devices, 0.0))
    if fits and (budget is None or hotness is None or num_devices == 1):
        return each
    if min(count, capacity) == 0:
        return each if fits else on_host(num_devices)
    if hotness is None:
        most = min(count, capacity * num_devices)
        raise ValueError(
            f"{most} of {num_rows} rows are to lie in device memory: pass hotness [num_rows], "
            "which selects them (NeighborSampler.sample_prob computes it)"
        )
    order = hottest_rows(hotness, num_rows)
    sums = np.concatenate([[0.0], np.cumsum(hotness[order])])
    replicated = np.zeros(1, np.int64)
    counts = np.array([count])
    if budget is not None:
        replicated = np.arange(capacity + 1 if num_devices > 1 else 1)
        counts = np.minimum(num_rows, replicated + num_devices * (capacity - replicated))
    total = float(sums[-1]) or 1.0
    shared = (sums[counts] - sums[replicated]) / num_devices
    shares = np.stack(
        [
            (sums[replicated] + shared) / total,
            shared * (num_devices - 1) / total,
            1 - sums[counts] / total,
        ]
    )
    per_row = 1 / np.array(rates)
    best = int(np.argmin(per_row @ shares))
    # The list of places of rows that are ordered by hotness takes room, too.
    if fits and per_row @ np.array(each.expected) < per_row @ shares[:, best]:
        return each
    own, peer, host = map(float, shares[:, best])
    return Division(
        order[: counts[best]], num_devices, int(replicated[best]), (own, peer, max(0.0, host))
    )
