"""Command line of the benchmarks: suites and options. `main` is the program."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from khop import _native
from khop.errors import KhopError
from khop_bench.settings import (
    DEFAULT,
    DEVICE_PARTS,
    DEVICE_SUITE,
    SUITES,
    Settings,
    default_cache,
)

PROGRAM = "benchmarks/run.py"

_BAD_INPUT, _INTERRUPTED = 2, 130
_EPILOG = """\
Cases of a suite take turns, so that a slow minute affects all of them. Figures are medians over
turns. Ratios are to the first case of a group, per unit of work if work is counted. Peers are PyG
with pyg-lib or torch-sparse, GraphLearn-for-PyTorch, and GraphBolt. Missing peers are left out.
Graphs are made once and stay in the cache. Delete the folder of the cache to remove them.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks.

    Args:
        argv: arguments. If None, the process's.

    Returns:
        Exit code: 0, 2 (bad input) or 130 (interrupted).
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Measure khop, a floor and its peers on this machine."
    )
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        return run(arguments)
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except (KhopError, ValueError, OSError) as error:
        if arguments.debug:
            raise
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return _BAD_INPUT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the program's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    suites = "\n".join(f"  {name:8s} {text}" for name, text in SUITES.items())
    parser.epilog = f"suites:\n{suites}\n\n{_EPILOG}"
    add = parser.add_argument
    add(
        "suites", nargs="*", metavar="SUITE", help=f"what to measure (default: {' '.join(DEFAULT)})"
    )
    add(
        "--scale",
        type=float,
        default=0.05,
        metavar="S",
        help="size of the graphs, 1 for ogbn-products (default: 0.05)",
    )
    add("--repeat", type=int, default=5, metavar="N", help="turns of each case (default: 5)")
    add(
        "--batches",
        type=int,
        metavar="N",
        help="batches that a turn times (default: 2, and 10 from scale 0.5 on)",
    )
    add("--cache", type=Path, metavar="DIR", help=f"of graphs (default: {default_cache()})")
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="for the report (default: benchmarks/results, or the working directory where there "
        "is no folder 'benchmarks')",
    )
    add(
        "--device",
        metavar="D",
        help=f"run the suite '{DEVICE_SUITE}' on 'cuda', 'cuda:N' or 'emulated'. The latter checks "
        "everything on any machine, but its times have no meaning",
    )
    add(
        "--configurations",
        type=int,
        default=1000,
        metavar="N",
        help="random batches that CPU and device must draw equally (default: 1000)",
    )
    add(
        "--part",
        action="append",
        metavar="P",
        help=f"of the suite '{DEVICE_SUITE}', any number of times: {', '.join(DEVICE_PARTS)} "
        "(default: all)",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="also record a turn of khop's loaders, to be opened in ui.perfetto.dev",
    )
    add("--debug", action="store_true", help="show tracebacks of errors")


def run(arguments: argparse.Namespace) -> int:
    """Measure the suites, print the figures and write the report."""
    unknown = [name for name in arguments.suites if name not in SUITES]
    if unknown:
        raise ValueError(f"no suite '{unknown[0]}': there are {', '.join(SUITES)}")
    if arguments.batches is not None and arguments.batches < 1:
        raise ValueError(f"--batches must be 1 or more (got {arguments.batches})")
    settings = Settings(
        arguments.scale,
        arguments.repeat,
        arguments.batches or 0,
        arguments.cache or default_cache(),
        arguments.trace,
        arguments.device,
        arguments.configurations,
        tuple(arguments.part or ()),
    )
    selected = arguments.suites or ([DEVICE_SUITE] if settings.device else DEFAULT)
    names = [name for name in SUITES if name in selected]  # in order, and once
    _check_device(names, settings)
    if settings.trace is not None and "loaders" not in names:
        raise ValueError(f"--trace records the suite 'loaders', which is not of {' '.join(names)}")
    from khop_bench.run import run_suites  # imports torch: only after the checks of arguments

    for file in run_suites(names, settings, arguments.output or _default_output()):
        print(f"written to {file}")
    return 0


def _check_device(names: Sequence[str], settings: Settings) -> None:
    """Check that `--device` and its suite are given together, and that the device works.

    Raises:
        ValueError: one of both is missing, or the device cannot be used.
    """
    if (DEVICE_SUITE in names) != (settings.device is not None):
        raise ValueError(
            f"the suite '{DEVICE_SUITE}' and --device need each other: "
            f"{PROGRAM} {DEVICE_SUITE} --device cuda"
        )
    if settings.device is None or settings.device == "emulated":
        return
    status = _native.cuda_status()
    index = int(settings.device.partition(":")[2] or 0)
    if index >= status.get("devices", 0):
        why = status.get("error") or f"{status.get('devices', 0)} GPUs are there"
        if not status["compiled"]:
            why = "khop was built without CUDA"
        raise ValueError(
            f"--device {settings.device} cannot be used ({why}); --device emulated works anywhere"
        )


def _default_output() -> Path:
    folder = Path("benchmarks")
    return folder / "results" if folder.is_dir() else Path()
