"""The order of packages, and which of them import no torch."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import khop

ROOT = Path(khop.__file__).parent

# A package imports only from those above it. Modules that lie beside packages stand for themselves.
# Four packages are listed by the packages and modules in them.
DIVIDED = ("sampler", "partition", "loader", "distributed")
ORDER = [
    *("_version", "_lazy", "typing", "errors", "private_folders", "safe_versions", "forks"),
    *(
        "interrupts",
        "cores",
        "numa",
        "placement",
        "loopback",
        "renames",
        "rename",
        "options",
        "codec",
        "log",
    ),
    *("plugins", "tables", "data"),
    *("channel", "trace", "storage"),
    *("sampler.methods", "sampler.plan", "sampler.arguments"),
    *("sampler.requests", "sampler.spec", "sampler.replies"),
    *("sampler.link_spec", "sampler.rows", "sampler.drawing", "sampler.device", "sampler.pyg"),
    *("partition.summary", "partition.source", "partition.batches", "partition.draws"),
    *("partition.out_of_core", "partition.writing", "partition.options", "partition.base"),
    *("partition.methods", "partition.cut", "partition.formats", "partition.report"),
    *("partition.recut", "partition.propagation"),
    *("metrics", "stats", "plot", "loader.inputs", "loader.arguments", "loader.iteration"),
    *("loader.batches", "loader.walk_windows", "loader.base", "loader.selection"),
    *("loader.neighbor_loader", "loader.link_neighbor_loader", "loader.induced"),
    *("distributed.processes", "distributed.rpc", "distributed.membership"),
    *("distributed.sampling", "distributed.job"),
    *("distributed.partitions", "distributed.options", "distributed.graph", "distributed.stores"),
    *(
        "distributed.dataset",
        "distributed.tensors",
        "distributed.remote",
        "distributed.inference",
        "distributed.loaders",
    ),
    *("nn", "optim", "lightning", "datasets", "sources", "launcher", "ray", "cli", "glt"),
]

# All of their modules run in samplers or servers, where torch need not be installed.
TORCH_FREE = [
    *(
        "channel",
        "cli",
        "data",
        "launcher",
        "metrics",
        "partition",
        "plot",
        "sources",
        "storage",
        "trace",
    ),
    *("sampler.methods", "sampler.rows", "sampler.drawing", "sampler.device"),
    *("distributed.processes", "distributed.rpc", "distributed.sampling"),
    *("distributed.membership", "distributed.remote.server"),
]

# Packages with modules of both kinds: these run in samplers, servers or receivers, the others in
# trainers.
TORCH_FREE_MODULES = {
    "sampler": {
        *("arguments", "link_spec", "plan", "replies", "requests", "spec"),
    },
    "distributed.remote": {
        *("addresses", "directory_client", "messages", "server_client", "session_messages"),
    },
    "distributed.remote.client": {
        *("batch_checks", "local_sampler", "reassembly", "receiver", "server_session"),
    },
    "distributed.tensors": {"accounts", "row_files", "shard", "tensor_requests"},
    "distributed.inference": {"files", "neighborhoods"},
}

BLOCKED = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torch_geometric"):
            raise ModuleNotFoundError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(module, error)
"""


def modules() -> dict[str, Path]:
    """All modules of khop, by name without 'khop.'."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        *folders, name = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(folders if name == "__init__" else [*folders, name])] = path
    return found


MODULES = modules()


def imports_of(path: Path) -> Iterator[str]:
    """Modules of khop that a file imports anywhere: in functions and for types, too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "khop":
                inner = name.removeprefix("khop").removeprefix(".")
                yield inner if inner in MODULES else inner.rpartition(".")[0]


def package_of(module: str) -> str:
    """The entry of `ORDER` that a module belongs to; '' for faces that only pass names on."""
    first, *rest = module.split(".")
    if first not in DIVIDED:
        return first
    return f"{first}.{rest[0]}" if rest else ""


@functools.cache
def arrows() -> list[tuple[str, str]]:
    """All (module, module that it imports); to parse all files takes a second."""
    return [(module, found) for module, path in MODULES.items() for found in imports_of(path)]


def test_every_package_has_its_place() -> None:
    known = {*ORDER, "", "__main__", "_native"}
    assert {package_of(module) for module in MODULES} <= known


@pytest.mark.parametrize("package", ORDER)
def test_package_imports_only_those_above_it(package: str) -> None:
    above = {*ORDER[: ORDER.index(package) + 1], "", "_native"}
    wrong = [
        f"{module} imports {imported}"
        for module, imported in arrows()
        if package_of(module) == package and package_of(imported) not in above
    ]
    assert wrong == []


def test_the_table_of_packages_is_in_this_order() -> None:
    """The first column of the table in docs/architecture.md, from top to bottom."""
    page = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
    rows = page.partition("| Package (")[2].partition("\n\n")[0].splitlines()[2:]
    names = [name for row in rows for name in re.findall("`([a-z_/]+)`", row.split("|")[1])]
    listed = [name.strip("/").replace("/", ".") for name in names]
    of_order = [e if e.startswith("distributed") else e.partition(".")[0] for e in ORDER]
    assert listed == list(dict.fromkeys(of_order))


def test_no_modules_import_each_other() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, imported in arrows():
        if imported and imported != module:
            graph[module].add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {error.args[1]}")


def test_module_names_of_distributed_are_unique() -> None:
    names: dict[str, list[str]] = {}
    for module in MODULES:
        if module.startswith("distributed."):
            names.setdefault(module.rpartition(".")[2], []).append(module)
    assert {name: both for name, both in names.items() if len(both) > 1} == {}


@pytest.mark.process
def test_packages_of_samplers_and_servers_import_no_torch() -> None:
    listed = {f"{p}.{name}" for p, names in TORCH_FREE_MODULES.items() for name in names}
    whole = tuple(f"{package}." for package in TORCH_FREE)
    wanted = [m for m in MODULES if m in listed or f"{m}.".startswith(whole)]
    assert listed <= set(wanted)  # none of them has gone
    command = [sys.executable, "-c", BLOCKED, *(f"khop.{module}" for module in wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
