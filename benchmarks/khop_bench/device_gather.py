"""Part of suite `device`: rows of a table, from device memory, from the host's, and from both.

A gather reads 0.4 M random rows of 400 bytes, out of 1 GB. It is compared with torch's copy of as
many bytes in one piece: within device memory, and from pinned host memory to it. The same rows are
stored as float16, too, and widened by the gather, which reads half of the bytes. From host memory
rows are also read in the order of the request, which should be slower than sorted. The hot cache is
a table with a fifth of its rows, the hottest, in device memory: the share of batches' rows that
come from there is counted, and compared with the share that hotness predicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from khop import _native
from khop.sampler.drawing.hotness import Seeds, TypedRows, sample_prob
from khop.typing import Array, Int64Array
from khop_bench.bench import Bench
from khop_bench.device_model import gather, model_row
from khop_bench.goals import COPY, DEVICE
from khop_bench.kernels import KhopKernel
from khop_bench.measure import Case, Row, Turn
from khop_bench.on_device import Drawn, Place

_COLUMNS = 100  # float32
_TABLE_ROWS = 2_450_000
_ROWS = 400_000
_EMULATED = 100  # so many times smaller
_HOT = 0.2
_UNSORTED = f"{DEVICE}, rows as asked for"
_WIDENED = f"{DEVICE}, float16 widened"


def measure_gathers(bench: Bench, test_device: Place, _: Drawn) -> list[Row]:
    """Measure gathers from device memory and from the host's, each against a copy."""
    factor = 1 if test_device.is_cuda else _EMULATED
    table = _table(_TABLE_ROWS // factor)
    count = _ROWS // factor
    out = test_device.empty((count, _COLUMNS), torch.float32)
    rows: list[Row] = []
    halves = table.astype(np.float16)
    wide = halves.astype(np.float32)
    for mode, where in (("CUDA", "device memory"), ("ZERO_COPY", "host memory")):
        with bench.survives(f"gather, {where}"):
            gathers = _native.DeviceTable(test_device.device, table, mode)
            bench.note(f"gather, {where}: rows lie in '{gathers.place}'")
            batches = bench.settings.batches
            cases = [
                gather_case(test_device, gathers, table, count, out, batches),
                copy_case(test_device, mode == "ZERO_COPY", out, batches),
            ]
            widens = _native.DeviceTable(test_device.device, halves, mode, encoding="float16")
            cases.append(gather_case(test_device, widens, wide, count, out, batches, _WIDENED))
            if mode == "ZERO_COPY":
                unsorted = _native.DeviceTable(
                    test_device.device, table, mode, sorts_from=count + 1
                )
                cases.append(
                    gather_case(test_device, unsorted, table, count, out, batches, _UNSORTED)
                )
                del unsorted
            group = test_device.group(f"gather, {where}")
            rows += bench.take_turns(group, cases, work_unit="kB")
            rows.append(model_row(group, DEVICE, gather(count, 4 * _COLUMNS, mode == "ZERO_COPY")))
            del gathers, widens, cases
    return rows


def _table(num_rows: int) -> Array:
    return np.random.default_rng(0).random((num_rows, _COLUMNS), np.float32)


def gather_case(
    test_device: Place,
    gathers: Any,
    table: Array,
    count: int,
    out: Any,
    batches: int,
    name: str = DEVICE,
) -> Case:
    """Make a case that gathers other random rows each time. The first result is checked.

    Args:
        test_device: the device.
        gathers: the table of the device.
        table: the same on the host.
        count: rows of a gather.
        out: [count, ...] memory of the device.
        batches: gathers that a turn times.
        name: name of the case.

    Raises:
        RuntimeError: the rows are not the table's.
    """
    rng = np.random.default_rng(1)
    chosen = [rng.integers(0, len(table), count) for _ in range(batches + 1)]
    rows = [test_device.put(some) for some in chosen]
    gathers.gather(rows[0], out)
    if not np.array_equal(test_device.get(out), table[chosen[0]]):
        raise RuntimeError("gathered rows are not those of the table: report this as a bug")

    def turn(turn_number: int) -> Turn:
        first = turn_number * batches
        some = [rows[(first + i) % len(rows)] for i in range(batches)]

        def all_of_them() -> None:
            for row_ids in some:
                gathers.gather(row_ids, out)

        return Turn(test_device.seconds(all_of_them) / batches, _kilobytes(out))

    return Case(name, turn)


def copy_case(test_device: Place, from_host: bool, out: Any, batches: int) -> Case:
    """Make a case that copies as many bytes in one piece, on the device or from pinned memory."""
    target = torch.as_tensor(out)
    sources = [torch.rand(target.shape) for _ in range(2)]
    if from_host:
        sources = [test_device.in_host_memory(source) for source in sources]
    else:
        sources = [source.to(test_device.torch_device) for source in sources]

    def turn(_: int) -> Turn:
        def all_of_them() -> None:
            for i in range(batches):
                target.copy_(sources[i % 2], non_blocking=True)

        return Turn(test_device.seconds(all_of_them) / batches, _kilobytes(out))

    return Case(COPY, turn)


def _kilobytes(out: Any) -> float:
    return float(np.prod(tuple(out.shape))) * 4e-3


def measure_hot_cache(bench: Bench, test_device: Place, drawn: Drawn) -> list[Row]:
    """Measure the share of batches' rows from device memory, and compare it with hotness."""
    kernel, seeds = drawn.kernel, drawn.seeds
    prob = _hotness(kernel, drawn.train, seeds.order.batch_size)
    hot = np.argsort(-prob, kind="stable")[: round(_HOT * len(prob))]
    served = _counter(test_device, len(prob), hot)

    def turn(turn_number: int) -> list[Turn]:
        batches = seeds.of_turn(turn_number)
        nodes = np.concatenate([kernel.nodes(batch.numpy(), index) for index, batch in batches])
        share = served(nodes)
        predicted = float(prob[hot].sum() / prob.sum())
        return [Turn(share), Turn(predicted), Turn(abs(share - predicted))]

    group = "hot cache"
    rows = [Row(group, "rows from the device", "%"), Row(group, "as hotness says", "%")]
    return bench.take_joint_turns([*rows, Row(group, "apart", "points")], turn)


def _hotness(kernel: KhopKernel, seeds: Int64Array, batch_size: int) -> Array:
    view, spec = kernel.engine.view, kernel.engine.spec
    rows = TypedRows(view.num_nodes, view.relations, view.csrs)
    return sample_prob(rows, spec.fanouts, Seeds(0, seeds, batch_size))[0]


def _counter(test_device: Place, num_rows: int, hot: Int64Array) -> Callable[[Int64Array], float]:
    """Return a function that gathers rows, and returns the fraction served from device memory."""
    table = np.arange(num_rows, dtype=np.int64)[:, None]  # narrow: rows are only counted
    group = _native.DeviceGroup([test_device.device])
    gathers = _native.DeviceTable(
        test_device.device, table, "CUDA", _native.HotRows(group, table, hot.astype(np.int64))
    )

    def share(nodes: Int64Array) -> float:
        out = test_device.empty((len(nodes), 1))
        gathers.reset_served()
        gathers.gather(test_device.put(nodes), out)
        if not np.array_equal(test_device.get(out)[:, 0], nodes):
            raise RuntimeError("gathered rows are not those of the table: report this as a bug")
        from_device, from_host = gathers.served
        return float(from_device / (from_device + from_host))

    return share
