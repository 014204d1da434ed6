"""Pages on extensions: each has a short example, which is one file, and works where it is named."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from khop.cli.main import main
from khop.distributed.job.launch_environment import CLUSTERS, find_place
from khop.partition import PartitionFolder
from khop.partition.cut import PARTITIONERS
from khop.sampler.methods.modules import PACKAGES
from khop.sources.read import LAYOUTS
from support.formats import fenced

PAGES = Path(__file__).parents[2] / "docs" / "extending"
GROUPS = [registry.group for registry in (PACKAGES, PARTITIONERS, LAYOUTS, CLUSTERS)]


@pytest.fixture
def write_example(tmp_path, monkeypatch):
    """A function that writes a page's example into a file in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(page, module):
        Path(f"{module}.py").write_text(fenced.blocks(PAGES / f"{page}.md")[0].source)

    yield write
    for name in ("by_attribute", "metis_graph", "indexed_job"):
        sys.modules.pop(name, None)


def commands_of(page):
    """Command lines of a page's shell blocks."""
    return [
        line
        for block in fenced.blocks(PAGES / f"{page}.md", "bash")
        for line in block.source.splitlines()
    ]


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_examples_are_short(page):
    if page.stem == "index":
        return
    example = fenced.blocks(page)[0].source
    assert 30 <= len(example.splitlines()) <= 60
    assert f"{page.name}" in (PAGES / "index.md").read_text()


def test_groups_are_listed():
    index = (PAGES / "index.md").read_text()
    assert [group for group in GROUPS if f"`{group}`" not in index] == []


def test_a_partitioner_from_the_command_line(write_example):
    write_example("partitioners", "by_attribute")
    nodes = torch.arange(200)
    graph = Data(edge_index=torch.stack([nodes, nodes.roll(1)]), region=nodes % 5, num_nodes=200)
    torch.save(graph, "graph.pt")
    (command,) = commands_of("partitioners")
    assert main(command.split()[1:]) == 0
    folder = PartitionFolder("parts")
    regions = [{int(node) % 5 for node in folder.node_ids(part, "node")} for part in (0, 1)]
    assert not regions[0] & regions[1] and regions[0] | regions[1] == {0, 1, 2, 3, 4}
    assert folder.meta.method["attribute"] == "region"


def test_a_layout_from_the_command_line(write_example, capsys):
    write_example("sources", "metis_graph")
    Path("square.graph").write_text("4 4\n2 4\n1 3\n2 4\n1 3\n")
    (command,) = commands_of("sources")
    assert main([*command.split()[1:], "--memory", "1MB"]) == 0
    assert PartitionFolder("parts").meta.edge_types[0].count == 8
    for text, message in (
        ("", "must begin with numbers of nodes and edges"),
        ("4 4\n2 4\n1 3\n", "has lines of 2 nodes, not of 4"),
        ("4 3\n2 4\n1 3\n2 4\n1 3\n", "has 8 entries for 3 edges"),
        ("4 4\n2 4\n1 3\n2 4\n1 9\n", "node"),
    ):
        Path("square.graph").write_text(text)
        capsys.readouterr()
        assert main([*command.split()[1:], "--overwrite"]) == 2
        assert message in capsys.readouterr().err


def test_a_launcher_by_the_variable(write_example, monkeypatch):
    write_example("cluster-environments", "indexed_job")
    monkeypatch.syspath_prepend(Path.cwd())
    (command,) = commands_of("cluster-environments")
    name, _, value = command.split()[0].partition("=")
    pod = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "t-1", "NUM_TRAINERS": "2", "SERVICE": "s"}
    assert find_place({name: value, **pod})[1:5] == (1, 2, "t-0.s", 29500)


def test_import_reads_no_entry_points():
    """Nor does it import what reads them, which takes longer than all of khop."""
    program = "import sys, khop, khop.plugins, khop.sources, khop.partition.cut; "
    program += "sys.exit('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def row_of(layout):
    """The row of a layout in the table of the page on inputs."""
    paths = [path if " " in path else f"`{path}`" for path in [layout.paths] if path]
    form = ", ".join([*(f"`{name}`" for name in layout.names), *paths])
    return f"| {form} | {layout.about} | {layout.unpacked or '–'} |"


def test_the_page_on_inputs_has_the_table_of_layouts():
    """In the order in which they are tried; a layout that is added is a row more."""
    text = (PAGES.parent / "how-to" / "inputs.md").read_text()
    rows = "\n".join(map(row_of, LAYOUTS.builtin.values()))
    assert f"| SOURCE | What it is | Unpacked |\n|---|---|---|\n{rows}\n\n" in text, rows
