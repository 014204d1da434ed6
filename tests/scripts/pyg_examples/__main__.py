"""Run PyG's examples with khop's loaders, from a checkout of PyG; print a table.

    python tests/scripts/pyg_examples --checkout ../pytorch_geometric
    python tests/scripts/pyg_examples --checkout ../pytorch_geometric --only hetero/

The imports of each script are changed to khop's names, with `ast`; `examples.py` has all other
edits. PyG is the one of the checkout. Nothing is downloaded: data sets are `datasets.py`'s. Exits
with 0 if all that ran reached what the table asks for.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(TESTS / "scripts"))

from pyg_examples.examples import EXAMPLES, LEFT_OUT, Example  # noqa: E402
from pyg_examples.rewrite import edited, with_khop  # noqa: E402

SECONDS = 300  # that an example may take


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="a working tree of PyG")
    parser.add_argument("--only", default="", help="run scripts whose path contains this")
    parser.add_argument("--show", action="store_true", help="print the output of those that fail")
    arguments = parser.parse_args()
    checkout = arguments.checkout.resolve()
    if not (checkout / "examples").is_dir():
        parser.error(f"'{checkout}' has no folder 'examples': name a working tree of PyG")
    examples = [e for e in EXAMPLES if arguments.only in e.script]
    outcomes = []
    print("| Example | Result | Seconds |\n|---|---|---|")
    for example in examples:
        began = time.monotonic()
        outcome, output = run(example, checkout)
        outcomes.append(outcome)
        name = " ".join([example.script, *example.arguments])
        print(f"| {name} | {outcome} | {time.monotonic() - began:.0f} |", flush=True)
        if arguments.show and outcome.startswith("FAILED"):
            print(output[-3000:])
    for script, reason in LEFT_OUT.items():
        if arguments.only in script:
            print(f"| {script} | left out: {reason} | |")
    pairs = zip(examples, outcomes, strict=True)
    passed = [e.script for e, outcome in pairs if outcome.startswith("passed")]
    failed = sum(outcome.startswith("FAILED") for outcome in outcomes)
    print(f"\n{len(passed)} runs of {len(set(passed))} scripts passed, {failed} failed")
    return int(failed > 0)


def run(example: Example, checkout: Path) -> tuple[str, str]:
    """Return what came of an example, and its output."""
    missing = [name for name in example.needs if importlib.util.find_spec(name) is None]
    if missing:
        return f"not run: needs {', '.join(missing)}", ""
    source = (checkout / "examples" / example.script).read_text()
    try:
        script = edited(with_khop(source), example.edits)
    except ValueError as error:
        return f"FAILED: {error}", ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, Path(example.script).name)
        path.write_text("import pyg_examples.prepare\n" + script)
        status, output = _outputs(example, path, checkout)
    return _judged(example, status, output), output


def _outputs(example: Example, path: Path, checkout: Path) -> tuple[int | str, str]:
    """Run a script, a process a machine; return its status and the first's output."""
    port = _free_port()
    command = [sys.executable, str(path), *example.arguments]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [checkout, TESTS / "scripts", *inherited]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(p) for p in paths if str(p)),
        "EXAMPLE_GPUS": "1" if example.gpus else "",
        "EXAMPLE_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    if example.nodes > 1:
        environment |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "LOCAL_RANK": "0"}
        environment |= {"WORLD_SIZE": str(example.nodes)}
    processes, files = [], []
    for rank in range(example.nodes):
        ranks = {"RANK": str(rank)} if example.nodes > 1 else {}
        files.append(path.with_suffix(f".{rank}.out").open("w+"))
        processes.append(
            subprocess.Popen(
                command,
                cwd=path.parent,
                env=environment | ranks,
                stdout=files[-1],
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
    try:
        statuses = [process.wait(SECONDS) for process in processes]
        status = next((s for s in statuses if s), 0)
    except subprocess.TimeoutExpired:
        status = f"ran for {SECONDS} s"
    for process, file in zip(processes, files, strict=True):
        _end(process)
        file.seek(0)
    outputs = [file.read() for file in files]
    for file in files:
        file.close()
    return status, outputs[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a script's processes that are left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _judged(example: Example, status: int | str, output: str) -> str:
    """Return what came of a run."""
    if status:
        last = [line for line in output.splitlines() if line.strip()][-1:]
        return f"FAILED: {status}: {''.join(last)[:200]}"
    figures = re.findall(example.reaches, output)
    if not figures:
        return "FAILED: it printed no figure"
    figure = float(figures[-1])
    bounds = f"at least {example.at_least}" if example.at_least else f"at most {example.at_most}"
    reached = example.at_least <= figure <= example.at_most
    return f"{'passed' if reached else 'FAILED'}: {figure} ({bounds})"


def _free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return str(listener.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
