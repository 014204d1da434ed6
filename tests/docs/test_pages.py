"""The Python blocks of the pages run, one after the other, as a reader would type them in.

One of "python nothing to run" does not: it is others' code, or needs machines, GPUs or ports.
"""

import itertools
import re
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import Data

import khop
from khop.distributed import shutdown_worker_group
from khop.loader import NeighborLoader
from support.cluster import jobs
from support.formats import fenced

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
WITHOUT_FOLDER = [
    *sorted(DOCS.glob("migrate-from-*.md")),
    DOCS / "extending" / "index.md",
    DOCS / "how-to" / "partitioning.md",
]
"""Pages that make their own partition folder."""
ELSEWHERE = [DOCS / "how-to" / "lightning.md"]  # tests/distributed/test_lightning.py
PAGES = [
    page
    for page in [README, *sorted(DOCS.rglob("*.md"))]
    if page not in ELSEWHERE and fenced.blocks(page)
]


@pytest.fixture
def sockets_apart(monkeypatch, tmp_path_factory):
    """A folder for sockets that no other process uses, so that what is left there is ours."""
    tmp_path_factory.getbasetemp()  # is made where temporary files go before that changes
    with tempfile.TemporaryDirectory(prefix="kt-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="module")
def graph():
    """A graph of 200 nodes, half of them to train on."""
    draw = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.rand(200, 4, generator=draw),
        edge_index=torch.randint(200, (2, 2000), generator=draw),
        y=torch.randint(3, (200,), generator=draw),
    )
    data.train_mask = torch.arange(200) < 100
    return data


def names_of_a_reader(graph):
    """What pages of how-to take for granted: a graph, a loader, a model and a step of training."""
    return {
        "__name__": "page",
        "itertools": itertools,
        "khop": khop,
        "torch": torch,
        "data": graph,
        "loader": NeighborLoader(graph, [2], batch_size=50, seed=0),
        "model": torch.nn.Linear(4, 3),
        "train": lambda batch: batch.num_nodes,
    }


@pytest.mark.usefixtures("sockets_apart")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs(page, graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page not in WITHOUT_FOLDER:
        khop.partition_graph(graph, "parts", 1)
    before = jobs.resources()
    names = names_of_a_reader(graph)
    for block in fenced.blocks(page):
        exec(block.compiled(page), names)
    names.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    shutdown_worker_group()
    assert jobs.wait_for_end_of_resources(before) == (set(), 0, set())


def test_files_are_there():
    """Whatever a page of code names."""
    text = (DOCS / "extending" / "methods.md").read_text()
    named = set(re.findall(r"`((?:kernels|src|tests)/[\w./]+)`", text))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (DOCS.parent / name).is_file()] == []


def test_pages_are_linked():
    """Every page is in the site's table of contents."""
    listed = {
        (DOCS / index).parent / line
        for index in ("index.md", "reference/index.md", "extending/index.md")
        for block in re.findall(r"```\{toctree\}(.*?)```", (DOCS / index).read_text(), re.DOTALL)
        for line in block.splitlines()
    }
    pages = {page.with_suffix("") for page in DOCS.rglob("*.md")} - {DOCS / "index"}
    missing = {page.relative_to(DOCS).as_posix() for page in pages - listed}
    assert missing == set()
