"""The whole test suite, again and again: `scripts/soak tests`.

Each run has its own seed and order of files. The first failure ends the repetition. The log of this
run, the output of crashed processes and their core dumps are kept.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SHOWN = 40  # lines of a log


@dataclass(frozen=True)
class Plan:
    """Runs of the suite, and their limits.

    Attributes:
        seed: seed of the first run. Each further run has the next seed.
        runs: number of runs. If None, as many as `hours` allow.
        hours: hours after which no run begins.
        load: number of processes that keep the processors busy meanwhile.
        sanitize: sanitizers of the extension, `"address"` for example, see `scripts/sanitize`.
        arguments: further arguments for pytest.
    """

    seed: int = 0
    runs: int | None = None
    hours: float = 1.0
    load: int = 0
    sanitize: str | None = None
    arguments: Sequence[str] = ()

    def command(self, seed: int) -> list[str]:
        """Command line of a run."""
        chosen = [f"--shuffle={seed}", "--maxfail=1", *(self.arguments or ["tests"])]
        if self.sanitize is not None:
            return ["bash", "scripts/sanitize", *chosen]
        files = ["--dist=loadfile", "--no-loadscope-reorder"]
        workers = [f"-n{os.cpu_count() or 1}", *files, "--max-worker-restart=0"]
        return [sys.executable, "-m", "pytest", *workers, *chosen]


def repeat(plan: Plan, folder: Path, report: Callable[[str], None]) -> bool:
    """Run the tests until one fails or the plan is done. Return True if none failed.

    Args:
        plan: the runs and their limits.
        folder: folder for files of runs. Files of a run that passes are removed.
        report: function that is called with a line per run, and with the output of a failure.
    """
    limit = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (limit[1], limit[1]))
    idle = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(idle) for _ in range(plan.load)]
    end = time.monotonic() + 3600 * plan.hours
    seed = plan.seed
    try:
        while _is_due(plan, seed - plan.seed, end):
            if not _run(plan, seed, folder / f"seed-{seed}", report):
                return False
            seed += 1
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limit)
        for process in busy:
            process.kill()
            process.wait()
    return True


def _is_due(plan: Plan, done: int, end: float) -> bool:
    if plan.runs is not None:
        return done < plan.runs
    return time.monotonic() < end


def _run(plan: Plan, seed: int, folder: Path, report: Callable[[str], None]) -> bool:
    """Run the tests once. Return False if one failed."""
    folder.mkdir(parents=True)
    log, command = folder / "log", plan.command(seed)
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1", "KHOP_TEST_LOGS": str(folder)}
    if plan.sanitize is not None:
        environment["KHOP_SANITIZE"] = plan.sanitize
    before, began = set(ROOT.glob("core*")), time.monotonic()
    with log.open("wb") as out:
        code = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False
        ).returncode
    cores = set(ROOT.glob("core*")) - before
    lines = log.read_text(errors="replace").splitlines()
    summary = re.sub(r"^=+ | =+$", "", lines[-1]) if lines else "it printed nothing"
    report(f"seed {seed}: {summary} ({time.monotonic() - began:.0f} s)")
    if code == 0:
        for file in (*cores, *folder.iterdir()):  # cores of children that tests crash
            file.unlink()
        folder.rmdir()
        return True
    for core in cores:
        core.rename(folder / core.name)
    reports = [file for file in folder.glob("*.faults") if file.stat().st_size]
    shown = [
        *lines[-_SHOWN:],
        *(line for file in reports for line in file.read_text().splitlines()),
    ]
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    report("\n".join([*shown, "", f"exit status {code}; again: {' '.join(command)}"]))
    report(f"kept: {folder}; cores go to '{pattern}'")
    return False


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser("soak tests", description="Repeat the test suite.")
    parser.add_argument("--hours", type=float, default=Plan.hours, help="no run begins later")
    parser.add_argument("--runs", type=int, help="number of runs, whatever they take")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first run")
    parser.add_argument("--load", action="store_true", help="keep all processors busy meanwhile")
    parser.add_argument("--sanitize", metavar="NAMES", help="on such a build: address,undefined")
    parser.add_argument("--out", type=Path, help="folder for what a failure leaves")
    options, rest = parser.parse_known_args(arguments)
    plan = Plan(
        seed=options.seed,
        runs=options.runs,
        hours=options.hours,
        load=(os.cpu_count() or 1) if options.load else 0,
        sanitize=options.sanitize,
        arguments=[word for word in rest if word != "--"],
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = options.out or Path(tempfile.mkdtemp(prefix="khop-soak-tests-"))
    return 0 if repeat(plan, folder, lambda line: print(line, flush=True)) else 1
