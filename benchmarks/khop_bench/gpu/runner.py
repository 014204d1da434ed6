"""Stages of a check: commands within a time limit, and a file of results for each stage.

A stage's file is written again after each of its commands. Output of commands goes to the log at
once. If the program is killed, it loses only the later results.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
LOG = "gpu_check.log"
SCHEMA = 2

_LAST_LINES = 40
_SHOWN = 12  # of them
_LEAST = 1.0  # seconds: with less left nothing is begun


@dataclass(frozen=True)
class Options:
    """Options of a check.

    Attributes:
        out: folder of results.
        build: folder of the build.
        cache: folder of the benchmarks' graphs.
        is_dry: no GPU is there: each stage does what it can without one, with tiny inputs.
        scale: size of the graphs of the stages that measure.
        limit: seconds of all stages together.
        processes: processes of tests at a time, of the stages whose tests need little memory.
    """

    out: Path
    build: Path
    cache: Path
    is_dry: bool = False
    scale: float = 1.0
    limit: float = 580.0
    processes: int = 1

    @property
    def device(self) -> str:
        """The device that benchmarks run on."""
        return "emulated" if self.is_dry else "cuda"


@dataclass
class Step:
    """A command of a stage.

    Attributes:
        name: name of the step.
        command: the command's words, in a line.
        code: exit code. If None, it was stopped at its limit or could not be started.
        seconds: time that it took.
        passed: True if the exit code is 0.
        last_lines: end of its output.
        about: results of the command, if it has any.
    """

    name: str
    command: str
    code: int | None = None
    seconds: float = 0.0
    passed: bool = False
    last_lines: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)


class Stage:
    """A stage while it runs.

    Args:
        name: name of the stage, and of its file.
        options: options of the check.
        seconds: time that it may take.
        environment: environment variables of its commands.

    Attributes:
        name, options: as passed.
        steps: commands so far.
        results: results of the stage beside them.
        output: what the last command printed.
    """

    def __init__(
        self, name: str, options: Options, seconds: float, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.options = options
        self.steps: list[Step] = []
        self.results: dict[str, Any] = {}
        self.output = ""
        self._environment = dict(environment)
        self._seconds = seconds
        self._begin = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._seconds - (time.monotonic() - self._begin))

    @property
    def passed(self) -> bool:
        """True if all its steps went well, and there was one."""
        return bool(self.steps) and all(step.passed for step in self.steps)

    def run(
        self, name: str, command: Sequence[str | Path], limit: float = 1e9, **environment: str
    ) -> Step:
        """Run a command, and end all that it has started when the time is over.

        Args:
            name: name of the step.
            command: its words.
            limit: seconds, at most what is left of the stage.
            environment: variables beside the stage's.
        """
        words = [str(word) for word in command]
        step = Step(name, " ".join(words))
        self.steps.append(step)
        limit = min(limit, self.left)
        print(f"\n== {self.name}, {name} (at most {limit:.0f} s): {step.command}", flush=True)
        begin = time.monotonic()
        self.output = ""
        if limit < _LEAST:
            self.output = "no time was left\n"
        else:
            self.output, step.code = self._output_of(step, words, limit, environment)
        step.seconds = round(time.monotonic() - begin, 1)
        step.passed = step.code == 0
        step.last_lines = self.output.splitlines()[-_LAST_LINES:]
        became = "was stopped or not started" if step.code is None else f"exit code {step.code}"
        print("\n".join(step.last_lines[-_SHOWN:]))
        print(f"-- {self.name}, {name}: {became} after {step.seconds} s", flush=True)
        self.write()
        return step

    def _output_of(
        self, step: Step, words: list[str], limit: float, environment: Mapping[str, str]
    ) -> tuple[str, int | None]:
        """Run it with its output to the log, and return the output and the exit code."""
        self.options.out.mkdir(parents=True, exist_ok=True)
        path = self.options.out / LOG
        with path.open("a") as log:
            log.write(f"== {self.name}, {step.name}: {step.command}\n")
            log.flush()
            begin = log.tell()
            code = _code_of(words, limit, {**self._environment, **environment}, log)
        with path.open(errors="replace") as log:
            log.seek(begin)
            return log.read(), code

    def write(self) -> None:
        """Write the results of the stage so far to its file."""
        content = {
            "schema": SCHEMA,
            "stage": self.name,
            "device": self.options.device,
            "passed": self.passed,
            "seconds": round(time.monotonic() - self._begin, 1),
            "steps": [asdict(step) for step in self.steps],
            **self.results,
        }
        self.options.out.mkdir(parents=True, exist_ok=True)
        file = self.options.out / f"{self.name}.json"
        unfinished = file.with_name(f".{file.name}")
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
        unfinished.replace(file)


def _code_of(
    words: list[str], limit: float, environment: Mapping[str, str], log: Any
) -> int | None:
    """Return a command's exit code. If it had to be ended or cannot be started, None."""
    try:
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A group to be ended as a whole, but no session of its own: where a machine is lent for
            # a while, what belongs to a call's session ends with the call.
            preexec_fn=os.setpgrp,  # noqa: PLW1509
        )
    except OSError as error:
        log.write(f"{error}\n")
        return None
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children, too
        process.wait()


def environment_of(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of commands: with this checkout's packages first.

    Where the checkout has no extension, khop is the one that is installed.

    Args:
        base: environment variables, such as `os.environ`.
    """
    is_built = any((ROOT / "src" / "khop").glob("_native*.so"))
    source = str(ROOT / "src") if is_built else ""
    path = [source, str(ROOT / "benchmarks"), base.get("PYTHONPATH", "")]
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONUNBUFFERED": "1",
    }


def run_stages(
    stages: Mapping[str, tuple[Callable[[Stage], None], float]],
    options: Options,
    environment: Mapping[str, str],
) -> list[Stage]:
    """Run stages in order. One that fails or takes too long stops no other one.

    Args:
        stages: {name: (what it does, seconds that it may take)}.
        options: options of the check.
        environment: environment variables of the commands.
    """
    begin = time.monotonic()
    done = []
    for name, (function, seconds) in stages.items():
        left = options.limit - (time.monotonic() - begin)
        stage = Stage(name, options, min(seconds, left), environment)
        try:
            function(stage)
        except Exception as error:  # of the check itself: GPUs are rare, and the next may work
            step = Step(name, "", last_lines=[f"{type(error).__name__}: {error}"])
            stage.steps.append(step)
            print(f"-- {name}: {step.last_lines[0]}", file=sys.stderr, flush=True)
        stage.write()
        done.append(stage)
    return done
