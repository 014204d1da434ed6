"""Run PyG's own tests of loaders and samplers with khop in PyG's place; print a table.

    python tests/scripts/pyg_tests --checkout ../pytorch_geometric
    python tests/scripts/pyg_tests --checkout ../pytorch_geometric --only test_hgt --show

First khop's loaders stand under PyG's names, then khop's sampler in PyG's loaders. PyG is the one
of the checkout. Exits with 0 if all tests pass but those that `left_out.py` lists.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

TESTS = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(TESTS / "scripts"))

from pyg_tests.left_out import LEFT_OUT  # noqa: E402

REASONS = {reason for reasons in LEFT_OUT.values() for reason in reasons.values()}

# Files with tests of a sampler, or of loaders that are given one.
SAMPLED = [
    "loader/test_neighbor_loader.py",
    "loader/test_link_neighbor_loader.py",
    "loader/test_hgt_loader.py",
    "loader/test_mixin.py",
    "loader/test_zip_loader.py",
    "loader/test_cache.py",
    "loader/test_prefetch.py",
    "data/lightning/test_datamodule.py",
    "nn/models/test_basic_gnn.py",
    "nn/conv/test_pna_conv.py",
    "utils/test_trim_to_layer.py",
]
FILES = {
    "loaders": [
        *SAMPLED,
        "loader/test_cluster.py",
        "loader/test_dynamic_batch_sampler.py",
        "loader/test_graph_saint.py",
        "loader/test_imbalanced_sampler.py",
        "loader/test_random_node_loader.py",
        "loader/test_shadow.py",
    ],
    "samplers": [*SAMPLED, "sampler/test_sampler_neighbor_sampler.py"],
}
# Of files of models: tests that have a loader.
WITH_LOADERS = {
    "nn/models/test_basic_gnn.py": "inference or trim_to_layer or cache",
    "nn/conv/test_pna_conv.py": "neighbor_loader",
    "utils/test_trim_to_layer.py": "neighbor_loader",
}
# Files of loaders, samplers and stores that are not run.
NOT_RUN = {
    "distributed/": "PyG's own distributed package, on torch's RPC",
    "data/test_feature_store.py, data/test_graph_store.py": "PyG's interfaces, with stores of the "
    "tests: khop's loaders read such in the tests of loaders",
    "loader/test_neighbor_sampler.py": "PyG's former NeighborSampler, on torch-sparse: see "
    "khop.loader.ToLayers",
    "loader/test_ibmb_loader.py, loader/test_temporal_dataloader.py, loader/test_dataloader.py": (
        "loaders that khop does not have"
    ),
    "nn/conv/test_hgt_conv.py": "a layer of HGT's model: nothing is drawn",
    "nn/models/test_tgn.py": "its loader of last neighbours is a part of PyG's TGN",
    "llm/utils/test_rag_graph_store.py": "the store of PyG's llm package, with a stand-in for a "
    "sampler: nothing is drawn",
}


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="a working tree of PyG")
    parser.add_argument("--only", default="", help="run files whose path contains this")
    parser.add_argument("--show", action="store_true", help="print the output of files that fail")
    arguments = parser.parse_args()
    checkout = arguments.checkout.resolve()
    if not (checkout / "test").is_dir():
        parser.error(f"'{checkout}' has no folder 'test': name a working tree of PyG")
    totals: Counter[str] = Counter()
    reasons: dict[str, list[str]] = {}
    print("| khop's | Test file | Passed | Left out | Skipped | Failed |")
    print("|---|---|---|---|---|---|")
    for swapped, files in FILES.items():
        for file in (f for f in files if arguments.only in f):
            outcomes, output = run(swapped, file, checkout)
            counts = Counter(outcome for outcome, _ in outcomes.values())
            totals += counts
            columns = [counts[o] for o in ("passed", "left out", "skipped", "failed")]
            print("|", " | ".join(map(str, [swapped, file, *columns])), "|", flush=True)
            for test, (outcome, reason) in outcomes.items():
                if outcome != "passed":
                    reasons.setdefault(f"{outcome}: {reason}", []).append(f"{swapped}: {test}")
            if arguments.show and counts["failed"]:
                print(output[-5000:])
    for reason, tests in reasons.items():
        print(f"\n{reason}\n  " + "\n  ".join(tests))
    print("\nNot run")
    for file, reason in NOT_RUN.items():
        print(f"  {file}: {reason}")
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in totals.items()))
    return int(totals["failed"] > 0 or not totals["passed"])


def run(swapped: str, file: str, checkout: Path) -> tuple[dict[str, tuple[str, str]], str]:
    """Run a file; return {test: (outcome, reason)}, and what pytest printed."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [checkout, TESTS / "scripts", *inherited]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(p) for p in paths if str(p)),
        "KHOP_SWAP": swapped,
        "OMP_NUM_THREADS": "2",  # one for each of two workers that tests pin to cores
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-p", "pyg_tests.swap", "-p", "no:cacheprovider"]
        command += ["-o", "addopts=", "--tb=native", f"--junitxml={report}", "--color=no", "-q"]
        command += [str(checkout / "test" / file)]
        if file in WITH_LOADERS:
            command += ["-k", WITH_LOADERS[file]]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        output = done.stdout + done.stderr
        if not report.exists():
            return {file: ("failed", output.strip().splitlines()[-1])}, output
        return dict(map(_outcome, ElementTree.parse(report).iter("testcase"))), output


def _outcome(case: ElementTree.Element) -> tuple[str, tuple[str, str]]:
    """Return the name of a test, what came of it, and why if it has not passed."""
    name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    for found in case:
        message = (found.get("message") or "").split("\n")[0]
        if found.tag == "skipped":
            return name, ("left out" if message in REASONS else "skipped", message)
        if found.tag in ("failure", "error"):
            return name, ("failed", message)
    return name, ("passed", "")


if __name__ == "__main__":
    sys.exit(main())
