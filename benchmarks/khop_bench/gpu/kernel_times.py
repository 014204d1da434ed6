"""Times of the kernels of a batch, as torch's profiler sees them, beside the model's prediction.

    python -m khop_bench.gpu.kernel_times --device cuda --scale 1 --output FILE

Kernels of a batch follow one another in a known order, so each belongs to a step of the model.
Prints a table and writes FILE again after each way to draw. `--plain` only draws, for profilers.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from khop import _native
from khop_bench.bench import Bench
from khop_bench.device import RECORDED, DeviceKernel
from khop_bench.device_model import H100, Counts, Prediction, gather, predict
from khop_bench.goals import DEVICE
from khop_bench.graphs import Graphs
from khop_bench.on_device import Drawn, Place, open_place
from khop_bench.peers import Peers
from khop_bench.report import format_number, table_lines
from khop_bench.settings import Settings, default_cache

WAYS: dict[str, dict[str, Any]] = {DEVICE: {}, RECORDED: {"cuda_graph": True}}
"""Ways to draw, with their options."""

_WARM = 3  # batches: the first one is launched, the second one recorded
_COLUMNS, _ROWS, _GATHERS, _EMULATED = 100, 400_000, 5, 100
_STEPS = (
    ("PickRows", "pick"),
    ("AppendEdges", "append"),
    ("InsertKeys", "append"),
    ("FirstOfNode", "scan of edges"),
    ("EndHop", "number"),
)
_TEMPLATE = re.compile(r"<(?:\w+::)*(\w+)")


class Launch(NamedTuple):
    """A kernel, or a copy, that ran.

    Attributes:
        name: the kernel's, demangled.
        begin: microseconds.
        us: microseconds that it took.
        is_kernel: False for copies and fills.
    """

    name: str
    begin: float
    us: float
    is_kernel: bool = True


class StepTime(NamedTuple):
    """A step of a batch, on average.

    Attributes:
        step: name of the step in the model, or of kernels that the model does not know.
        launches: kernels per batch that ran. If none was seen, 0.
        us: microseconds that they ran, per batch.
        model_launches: kernels that the model has.
        model_us: microseconds that it has, without the gaps between kernels.
    """

    step: str
    launches: float
    us: float
    model_launches: float
    model_us: float


def launches_in(trace: Mapping[str, Any]) -> list[Launch]:
    """Return the kernels and copies that a GPU ran, in order.

    Args:
        trace: trace of torch's profiler, as it exports it for Chrome.
    """
    result = [
        Launch(event["name"], float(event["ts"]), float(event["dur"]), event["cat"] == "kernel")
        for event in trace["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    return sorted(result, key=lambda launch: launch.begin)


def named_steps(launches: Iterable[Launch]) -> list[tuple[str, Launch]]:
    """Return each launch with the step of the model that it belongs to.

    Args:
        launches: kernels and copies of some batches, in order.
    """
    hop, result = 1, []
    for launch in launches:
        step = "" if launch.is_kernel else "copies and fills"
        if "PlaceSeeds" in launch.name:
            hop, step = 1, "seeds"
        elif "WritePieces" in launch.name:
            step = "write"
        for part, name in _STEPS:
            if f"::{part}" in launch.name and not step:
                step = f"hop {hop}, {name}"
                hop += part == "EndHop"
        result.append((step or _short(launch.name), launch))
    return result


def _short(name: str) -> str:
    """Return the model's step of a khop kernel ('CheckRows'), or the beginning of another name."""
    inner = _TEMPLATE.search(name)
    return inner[1] if inner is not None and "khop" in name else name[:60]


def compare(
    launches: Iterable[Launch], num_batches: int, predictions: Sequence[Prediction]
) -> list[StepTime]:
    """Return the steps of a batch in the model's order, then unknown ones.

    Args:
        launches: kernels and copies of all batches, in order.
        num_batches: how many batches there were.
        predictions: the model's predictions for batches like these.
    """
    count: Counter[str] = Counter()
    took: dict[str, float] = {}
    for step, launch in named_steps(launches):
        count[step] += 1
        took[step] = took.get(step, 0.0) + launch.us
    expected: dict[str, list[float]] = {}
    for prediction in predictions:
        for work in (*prediction.drawn, *prediction.written):
            us = 1e6 * (work.seconds(prediction.gpu) - work.launches * prediction.gpu.gap)
            sums = expected.setdefault(work.step, [0.0, 0.0])
            sums[0] += work.launches
            sums[1] += us
    steps = [*expected, *(step for step in count if step not in expected)]
    return [
        StepTime(
            step,
            count[step] / num_batches,
            took.get(step, 0.0) / num_batches,
            *(value / len(predictions) for value in expected.get(step, (0.0, 0.0))),
        )
        for step in steps
    ]


def lines(steps: Sequence[StepTime]) -> list[str]:
    """Return a Markdown table of steps.

    Args:
        steps: steps of a batch, with their times.
    """
    cells = [("step", "launches", "us", "model: launches", "us", "ratio")]
    for step in steps:
        ratio = step.us / step.model_us if step.us and step.model_us else None
        cells.append(
            (
                step.step,
                f"{step.launches:g}" if step.launches else "",
                format_number(step.us) if step.launches else "",
                f"{step.model_launches:g}" if step.model_launches else "",
                format_number(step.model_us) if step.model_launches else "",
                "" if ratio is None else f"{ratio:.2f}",
            )
        )
    return table_lines(cells)


def totals(
    launches: Sequence[Launch], num_batches: int, predictions: Sequence[Prediction]
) -> dict[str, float | None]:
    """Return microseconds per batch: in kernels, from the first to the last, and the model's.

    Args:
        launches: kernels and copies of all batches, in order.
        num_batches: how many batches there were.
        predictions: the model's predictions for batches like these.

    Returns:
        `busy`, `span` with gaps, copies and the host's wait, and `model`. `gap` is the median of
        the pauses between one kernel's end and the next one's begin. None where nothing ran.
    """
    model = 1e6 * sum(prediction.seconds for prediction in predictions) / len(predictions)
    if not launches:
        return {"busy": None, "span": None, "gap": None, "model": model}
    ends = np.array([launch.begin + launch.us for launch in launches])
    begins = np.array([launch.begin for launch in launches])
    return {
        "busy": sum(launch.us for launch in launches) / num_batches,
        "span": float(ends.max() - begins.min()) / num_batches,
        "gap": float(np.median(begins[1:] - ends[:-1])) if len(launches) > 1 else None,
        "model": model,
    }


# Measuring.


def profiled(test_device: Place, run: Callable[[], object]) -> list[Launch]:
    """Run a function and return the launches of the GPU, none for an emulated device.

    Args:
        test_device: the device.
        run: function to profile.
    """
    test_device.wait()
    # Without a GPU, the profile is empty, but this code runs as on a GPU.
    activities = [ProfilerActivity.CUDA if test_device.is_cuda else ProfilerActivity.CPU]
    with profile(activities=activities) as result:
        run()
        test_device.wait()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        result.export_chrome_trace(str(file))
        return launches_in(json.loads(file.read_text()))


def measure_way(
    test_device: Place, drawn: Drawn, way: str, num_batches: int, is_plain: bool
) -> dict[str, Any]:
    """Draw batches in one of `WAYS`, and return steps and totals, nothing if `is_plain`.

    Args:
        test_device: the device.
        drawn: the graph and the seeds.
        way: the way.
        num_batches: batches that are profiled.
        is_plain: only draw.
    """
    kernel = DeviceKernel(test_device, drawn.kernel, "CUDA", **WAYS[way])
    batches = [(n, seeds.numpy()) for n, seeds in drawn.seeds.order.of_turn(0, num_batches)]
    for number_of, seeds in (batches * _WARM)[:_WARM]:
        kernel.draw(seeds, number_of)

    def draw() -> None:
        for number_of, seeds in batches:
            kernel.draw(seeds, number_of)

    if is_plain:
        draw()
        test_device.wait()
        return {}
    launches = profiled(test_device, draw)
    counts: list[Counts] = [kernel.counts(seeds, number_of) for number_of, seeds in batches]
    predictions = [predict(one, H100, way == RECORDED) for one in counts]
    steps = compare(launches, num_batches, predictions)
    print("\n".join(["", f"{way}, us per batch:", "", *lines(steps)]), flush=True)
    sums = totals(launches, num_batches, predictions)
    print(", ".join(f"{name} {format_number(us)}" for name, us in sums.items() if us is not None))
    return {"steps": [step._asdict() for step in steps], "totals": sums}


def measure_gather(test_device: Place, mode: str) -> dict[str, Any]:
    """Gather rows, and return microseconds per gather of each kernel, and the model's.

    Args:
        test_device: the device.
        mode: memory of the table: 'CUDA' or 'ZERO_COPY'.
    """
    factor = 1 if test_device.is_cuda else _EMULATED
    table = np.ones((2_450_000 // factor, _COLUMNS), np.float32)
    count = _ROWS // factor
    gathers = _native.DeviceTable(test_device.device, table, mode)
    rows = test_device.put(np.random.default_rng(0).integers(0, len(table), count))
    out = test_device.empty((count, _COLUMNS), torch.float32)
    gathers.gather(rows, out)

    def gather_all() -> None:
        for _ in range(_GATHERS):
            gathers.gather(rows, out)

    launches = profiled(test_device, gather_all)
    took: dict[str, float] = {}
    for step, launch in named_steps(launches):
        took[step] = took.get(step, 0.0) + launch.us / _GATHERS
    model = 1e6 * (gather(count, 4 * _COLUMNS, mode == "ZERO_COPY") - H100.gap)
    print(f"gather, {mode} ({gathers.place}): {took}, model {format_number(model)} us", flush=True)
    return {"kernels": took, "model_us": model, "place": gathers.place}


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=0.05, help="of products (default: 0.05)")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="of graphs")
    parser.add_argument("--batches", type=int, default=20, help="of each way (default: 20)")
    parser.add_argument("--output", type=Path, help="file for the figures, as JSON")
    parser.add_argument("--plain", action="store_true", help="only draw, under another profiler")
    arguments = parser.parse_args()
    settings = Settings(arguments.scale, cache=arguments.cache, device=arguments.device)
    bench = Bench(settings, Graphs(arguments.cache, arguments.scale), Peers())
    result: dict[str, Any] = {"scale": arguments.scale, "batches": arguments.batches}

    def keep(name: str, figures: dict[str, Any]) -> None:
        result[name] = figures
        if arguments.output is not None:
            arguments.output.write_text(json.dumps(result, indent=1) + "\n")

    with open_place(arguments.device) as test_device:
        drawn = Drawn(bench)
        for way in WAYS:
            keep(way, measure_way(test_device, drawn, way, arguments.batches, arguments.plain))
        for mode in () if arguments.plain else ("CUDA", "ZERO_COPY"):
            keep(f"gather, {mode}", measure_gather(test_device, mode))


if __name__ == "__main__":
    main()
