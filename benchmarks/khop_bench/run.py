"""Run of some suites, from settings to report files."""

from __future__ import annotations

import gc
import importlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from khop_bench import chart, report
from khop_bench.bench import Bench
from khop_bench.goals import standings
from khop_bench.graphs import Graphs
from khop_bench.machine import describe_device, describe_machine, describe_software
from khop_bench.measure import Row
from khop_bench.peers import Peers
from khop_bench.settings import DEFAULT, SUITES, Settings


def run_suites(
    names: Sequence[str],
    settings: Settings,
    output: Path,
    print_line: Callable[[str], None] = print,
) -> list[Path]:
    """Measure suites and write the report.

    Args:
        names: names of the suites.
        settings: options of the run.
        output: folder for the report, made if need be.
        print_line: called with each line of progress.

    Returns:
        The files: `bench-scale<scale>[-<suites>][-<device>]` with .json, .md and, with matplotlib,
        .png.

    Raises:
        OSError: the cache or the output folder cannot be written.
        RuntimeError: a part of a suite failed. Raised when all is written.
    """
    peers = Peers()
    about = {
        "settings": settings.to_json(),
        "machine": describe_machine(),
        "software": describe_software(peers),
    }
    if settings.device is not None:
        about["machine"].update(describe_device(settings.device))
    bench = Bench(settings, Graphs(settings.cache, settings.scale, print_line), peers, print_line)
    for section in ("machine", "software"):
        print_line(", ".join(f"{k} {v}" for k, v in about[section].items() if v is not None))
    for line in peers.left_out:
        bench.leave_out(line)
    output.mkdir(parents=True, exist_ok=True)  # fail before the work rather than after it
    file_name = _file_name(names, settings, about)
    rows: dict[str, list[Row]] = {}

    def write() -> list[Path]:
        arguments = (about, rows, standings(rows), bench.notes, bench.left_out)
        texts = report.to_json(*arguments), report.to_markdown(*arguments)
        return report.write(output, file_name, *texts)

    for name in names:
        print_line(f"\n{name}: {SUITES[name]}")
        begin = time.perf_counter()

        def keep(some: list[Row], name: str = name) -> None:
            rows[name] = some
            write()

        bench.keep = keep
        rows[name] = importlib.import_module(f"khop_bench.{name}").run(bench)
        gc.collect()  # a suite's graph may be large, and objects may be in reference cycles
        print_line(f"({time.perf_counter() - begin:.0f} s)\n")
        for line in report.row_lines(rows[name]):
            print_line(line)
        write()  # now: a run that is killed keeps what it has measured

    reached = standings(rows)
    if reached:
        print_line("")
        for line in report.goal_lines(reached):
            print_line(line)
    files = write()
    if chart.can_draw():
        files.append(output / f"{file_name}.png")
        chart.draw(rows, f"khop benchmarks, scale {settings.scale:g}", files[-1])
    else:
        print_line("no chart: matplotlib is not installed (pip install 'khop[plot]')")
    if bench.failed:
        raise RuntimeError("; ".join(bench.failed))
    return files


def _file_name(names: Sequence[str], settings: Settings, about: Mapping[str, Any]) -> str:
    """Return the name of the report's files, without an ending."""
    name = f"bench-scale{settings.scale:g}"
    if tuple(names) != DEFAULT:
        name += "-" + "-".join(names)
    if settings.device is not None:
        name += "-" + slug(about["machine"]["device"])
    return name


def slug(name: str) -> str:
    """Convert a device's name to a part of a file's: 'NVIDIA H200' -> 'nvidia-h200'."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
