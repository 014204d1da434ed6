"""GLT's own tests, with the import changed, and CPUs where they name GPUs.

Not run: Vineyard's, one that downloads (skipped by GLT), and the four for heterogeneous graphs with
'in': their parts have edges at their sources, so that neighbours are lost, and one asserts edges
that its own graph does not have; khop refuses such parts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from edits import CHECKED_ENDS, CPU, IMPORT, NO_PARTS_FOR_IN, edit_tree

NOT_RUN = ("test_vineyard.py",)
WRONG = "hetero_in_sample"
"""Part of the names of tests whose parts are wrong."""


def run(checkout: Path, names: list[str], options: list[str], environment: dict[str, str]) -> int:
    """Run test files whose names contain one of `names` (if none, all); return pytest's status.

    Args:
        checkout: folder of a checkout.
        names: parts of file names.
        options: further arguments of pytest.
        environment: environment of the tests.
    """
    with tempfile.TemporaryDirectory(prefix="glt-tests-") as folder:
        root = Path(folder) / "tests"
        shutil.copytree(checkout / "test/python", root)
        edit_tree(root, (*IMPORT, *CPU, *CHECKED_ENDS, *NO_PARTS_FOR_IN))
        chosen = [
            path.name
            for path in sorted(root.glob("test_*.py"))
            if path.name not in NOT_RUN
            and (not names or re.search("|".join(map(re.escape, names)), path.name))
        ]
        path = f"{root}:{environment['PYTHONPATH']}"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *chosen]
        command += [f"--deselect={name}" for name in _wrong(root)]
        done = subprocess.run(
            [*command, *options],
            cwd=root,
            env={**environment, "PYTHONPATH": path},
            check=False,
        )
        return done.returncode


def _wrong(root: Path) -> list[str]:
    """Return the ids of tests whose parts are wrong."""
    ids = []
    for path in root.glob("test_*.py"):
        text = path.read_text()
        for case in re.findall(r"^class (\w+)\(unittest.TestCase\)", text, re.MULTILINE):
            names = re.findall(rf"def (test_{WRONG}\w*)", text)
            ids += [f"{path.name}::{case}::{name}" for name in names]
    return ids
