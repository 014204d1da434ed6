"""Pages on extensions: each has a short example, which is one file, and works where it is named."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import khop
from khop.cli.main import main
from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    shutdown_worker_group,
)
from khop.distributed.job.launch_environment import CLUSTERS, find_place
from khop.distributed.rpc.transport import TRANSPORTS
from khop.loader import NeighborLoader
from khop.partition import PartitionFolder
from khop.partition.cut import PARTITIONERS
from khop.plugins import GROUPS
from khop.sampler.methods.modules import PACKAGES
from khop.sources.read import LAYOUTS
from support.cluster import jobs
from support.formats import fenced

PAGES = Path(__file__).parents[2] / "docs" / "extending"
NOTHING = "\N{EN DASH}"
REGISTRIES = (CLUSTERS, PACKAGES, PARTITIONERS, LAYOUTS, TRANSPORTS)


@pytest.fixture
def write_example(tmp_path, monkeypatch):
    """A function that writes a page's example into a file in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(page, module):
        Path(f"{module}.py").write_text(fenced.blocks(PAGES / f"{page}.md")[0].source)

    yield write
    for name in ("by_attribute", "metis_graph", "flux_tasks", "shared_files"):
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
    assert [registry.group for registry in REGISTRIES] == list(GROUPS)
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
    write_example("cluster-environments", "flux_tasks")
    monkeypatch.syspath_prepend(Path.cwd())
    (command,) = commands_of("cluster-environments")
    name, _, value = command.split()[0].partition("=")
    task = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_JOB_ID": "f", "FIRST_HOST": "n"}
    assert find_place({name: value, **task})[1:4] == (1, 2, "n")


@pytest.fixture
def two_parts(tmp_path):
    """A graph, and a folder of it in two parts."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(300, (2, 3000), generator=draw)
    data = Data(x=torch.rand(300, 8, generator=draw), edge_index=edges)
    khop.partition_graph(data, tmp_path / "parts", 2)
    return data, tmp_path / "parts"


def check_batches(data, dataset, options=None):
    """AssertionError unless batches over two parts are those of a loader in memory."""
    seeds = torch.arange(300)
    whole = NeighborLoader(data, [5, 4], seeds, batch_size=50, seed=1)
    parts = DistNeighborLoader(
        dataset, [5, 4], seeds, batch_size=50, seed=1, worker_options=options
    )
    count = 0
    for one, other in zip(parts, whole, strict=True):
        assert torch.equal(one.n_id, other.n_id) and torch.equal(one.x, other.x)
        assert torch.equal(one.edge_index, other.edge_index)
        count += 1
    assert count == 6
    return parts


def test_a_transport_over_two_parts(write_example, two_parts, monkeypatch):
    """In the trainer and in samplers; a server that is killed comes back at its address."""
    write_example("transports", "shared_files")
    (command,) = commands_of("transports")
    name, _, value = command.split()[0].partition("=")
    monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(Path.cwd())
    data, folder = two_parts
    before = jobs.resources()
    dataset = DistDataset().load(folder, 0, also_serve=[1])
    (endpoint,) = dataset.service().endpoints().values()
    assert endpoint.address.startswith("memfd:///")
    loader = check_batches(data, dataset)
    samplers = check_batches(data, dataset, MpDistSamplingWorkerOptions(num_workers=2))
    ends = Path("/proc/net/unix").read_text().count(endpoint.address.removeprefix("memfd://"))
    assert ends == 1 + 3  # it listens; the trainer and two samplers are connected
    samplers.shutdown()
    del samplers
    (server,) = dataset.service().endpoint_registry.supervisor.servers.values()
    os.kill(server.process.pid, signal.SIGKILL)
    check_batches(data, dataset)
    del dataset, loader, server
    shutdown_worker_group()
    assert jobs.wait_for_end_of_resources(before)[:2] == (set(), 0)
    assert not Path(endpoint.address.removeprefix("memfd://")).parent.exists()


def test_import_reads_no_entry_points():
    """Nor does it import what reads them, which takes longer than all of khop."""
    program = "import sys, khop, khop.plugins, khop.sources, khop.partition.cut; "
    program += "sys.exit('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def row_of(layout):
    """The row of a layout in the table of the page on inputs."""
    paths = [path if " " in path else f"`{path}`" for path in [layout.paths] if path]
    form = ", ".join([*(f"`{name}`" for name in layout.names), *paths])
    return f"| {form} | {layout.about} | {layout.unpacked or NOTHING} |"


def test_the_page_on_inputs_has_the_table_of_layouts():
    """In the order in which they are tried; a layout that is added is a row more."""
    text = (PAGES.parent / "how-to" / "inputs.md").read_text()
    rows = "\n".join(map(row_of, LAYOUTS.builtin.values()))
    assert f"| SOURCE | What it is | Unpacked |\n|---|---|---|\n{rows}\n\n" in text, rows
