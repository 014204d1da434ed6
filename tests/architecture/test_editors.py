"""Editors see public names with their arguments: jedi, and pyright where it is installed.

mypy sees `tests/support/typed_use.py`, too, in each run over the repository (`.ci/run`).
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import khop

ROOT = Path(khop.__file__).parents[1]
USE = Path(__file__).parents[1] / "support" / "typed_use.py"
PACKAGES = ("distributed", "loader", "sampler", "partition", "plot", "metrics", "trace")
CALLS = {
    "from khop.loader import NeighborLoader": {"data", "num_neighbors", "seed"},
    "from khop.distributed import DistNeighborLoader": {"num_neighbors", "options"},
    "from khop.distributed import init_worker_group": {"rank", "world_size"},
    "from khop.partition import partition_graph": {"output_dir", "num_parts"},
    "from khop.sampler import Labor": {"importance"},
}


pytestmark = pytest.mark.process  # jedi and pyright run in processes of their own


@pytest.fixture(scope="module")
def jedi_project() -> Any:
    jedi = pytest.importorskip("jedi")
    return lambda text: jedi.Script(text, project=jedi.Project(ROOT, added_sys_path=[str(ROOT)]))


@pytest.mark.parametrize("package", PACKAGES)
def test_jedi_completes_public_names(package: str, jedi_project: Any) -> None:
    completed = {c.name for c in jedi_project(f"from khop.{package} import ").complete()}
    assert set(importlib.import_module(f"khop.{package}").__all__) - completed == set()


@pytest.mark.parametrize("line", CALLS, ids=lambda line: line.split()[-1])
def test_jedi_shows_arguments(line: str, jedi_project: Any) -> None:
    name = line.rpartition(" ")[2]
    (shown,) = jedi_project(f"{line}\n{name}(").get_signatures(2, len(name) + 1)
    assert CALLS[line] - {parameter.name for parameter in shown.params} == set()


def test_pyright_finds_the_mistakes(tmp_path: Path) -> None:
    """Each `type: ignore` of the file hides an error, and no other line has one."""
    program = shutil.which("pyright") or shutil.which("basedpyright")
    if program is None:
        pytest.skip("pyright is not installed")
    settings = {
        "extraPaths": [str(ROOT)],
        "include": [str(USE)],
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [program, "--outputjson", "--project", str(tmp_path)]
    report = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    errors = [
        f"{entry['range']['start']['line'] + 1}: {entry['message']}"
        for entry in json.loads(report.stdout)["generalDiagnostics"]
        if entry["severity"] == "error"
    ]
    assert errors == []
