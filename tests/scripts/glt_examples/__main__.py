"""Run the examples and tests of a checkout of GraphLearn-for-PyTorch with khop.glt, on the CPU.

    python tests/scripts/glt_examples CHECKOUT                # all examples, one after another
    python tests/scripts/glt_examples CHECKOUT hetero igbh    # those whose names begin so
    python tests/scripts/glt_examples CHECKOUT --tests        # GLT's own tests
    python tests/scripts/glt_examples CHECKOUT --tests dist_link -- -k remote

Scripts are copied and edited (`edits`), and read small data of the original's format (`data`).
Needs what the scripts import: ogb, pandas, scikit-learn, tqdm; `parameterized` for the tests. Not
part of CI: no checkout is downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import own_tests
from edits import CPU, IMPORT, edit_file, edit_tree

from examples import EXAMPLES, NOT_RUN, Example

HERE = Path(__file__).resolve().parent
SITE = (HERE, HERE / "stand_ins")


def environment() -> dict[str, str]:
    """Return the environment of scripts."""
    path = [*map(str, SITE), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in path if p),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        # Scripts of torch 1.13 read data sets, which are pickles.
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
    }


def run_step(commands: tuple[str, ...], folder: Path, limit: float) -> tuple[bool, str]:
    """Run command lines at the same time; return whether all ended well, and what they printed."""
    running = []
    for command in commands:
        words = shlex.split(command)
        script = folder / words[0]
        output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, script.name, *words[1:]],
            cwd=script.parent,
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        running.append((command, process, output))
    until, well, printed = time.monotonic() + limit, True, []
    for command, process, output in running:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        well &= process.returncode == 0
        output.seek(0)
        printed.append(f"$ {command}\n{output.read()}[exit status {process.returncode}]\n")
        output.close()
    return well, "".join(printed)


def run_example(example: Example, checkout: Path, root: Path, limit: float) -> tuple[str, str]:
    """Run an example; return its result ('ok', or why not) and what it printed."""
    shutil.copytree(checkout / "examples", root / "examples")
    folder = root / "examples" / example.folder
    for script, edits in example.edits:
        edit_file(folder / script, edits)
    edit_tree(root / "examples", (*IMPORT, *CPU))
    for make in example.makes:
        make(root)
    log = []
    for commands in example.steps:
        well, printed = run_step(commands, folder, limit)
        log.append(printed)
        if not well:
            return "failed", "".join(log)
    if example.output is not None:
        log.append((folder / example.output).read_text())
    return _judged(example, "".join(log)), "".join(log)


def _judged(example: Example, printed: str) -> str:
    if example.figure is None:
        return "ok"
    found = re.findall(example.figure, printed)
    if not found:
        return f"no figure like {example.figure!r}"
    value = float(found[-1])
    well = example.least <= value <= example.most
    return f"ok: {found[-1]}" if well else f"figure {value}, not {example.least} to {example.most}"


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="folder of a checkout")
    parser.add_argument("names", nargs="*", help="beginnings of names; if none, all")
    parser.add_argument("--tests", action="store_true", help="run GLT's own tests")
    parser.add_argument("--limit", type=float, default=300, help="seconds a step may take")
    parser.add_argument("--logs", type=Path, help="folder to write what is printed to")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    chosen, further = parser.parse_intermixed_args(words[:end]), words[end + 1 :]
    if not (chosen.checkout / "examples").is_dir():
        parser.error(f"'{chosen.checkout}' is no checkout of GraphLearn-for-PyTorch")
    if chosen.tests:
        return own_tests.run(chosen.checkout, chosen.names, further, environment())
    failed = 0
    for example in EXAMPLES:
        if chosen.names and not example.name.startswith(tuple(chosen.names)):
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="glt-examples-") as root:
            result, printed = run_example(example, chosen.checkout, Path(root), chosen.limit)
        failed += not result.startswith("ok")
        print(f"{example.name}: {result} ({time.monotonic() - started:.0f} s)", flush=True)
        if chosen.logs is not None:
            chosen.logs.mkdir(parents=True, exist_ok=True)
            (chosen.logs / f"{example.name.replace('/', '-')}.txt").write_text(printed)
        elif not result.startswith("ok"):
            print(printed[-6000:])
    if not chosen.names:
        for name, reason in NOT_RUN.items():
            print(f"{name}: not run: it {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
