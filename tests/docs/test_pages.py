"""The Python blocks of the pages run, one after the other, as a reader would type them in."""

import re
import tempfile
from pathlib import Path

import pytest

from khop.distributed import shutdown_worker_group
from support.cluster import jobs
from support.formats import fenced

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    *sorted(DOCS.glob("migrate-from-*.md")),
    DOCS / "extending.md",
    DOCS / "how-to" / "partitioning.md",
]


@pytest.fixture
def sockets_apart(monkeypatch, tmp_path_factory):
    """A folder for sockets that no other process uses, so that what is left there is ours."""
    tmp_path_factory.getbasetemp()  # is made where temporary files go before that changes
    with tempfile.TemporaryDirectory(prefix="kt-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.mark.usefixtures("sockets_apart")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = jobs.resources()
    names = {"__name__": "page"}
    blocks = fenced.blocks(page)
    assert blocks
    for block in blocks:
        exec(block.compiled(page), names)
    names.clear()
    shutdown_worker_group()
    assert jobs.wait_for_end_of_resources(before) == (set(), 0, set())


def test_files_are_there():
    """Whatever a page of code names."""
    text = (DOCS / "extending.md").read_text()
    named = set(re.findall(r"`((?:kernels|src|tests)/[\w./]+)`", text))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (DOCS.parent / name).is_file()] == []


def test_pages_are_linked():
    readme = (DOCS.parent / "README.md").read_text()
    paths = [page.relative_to(DOCS.parent).as_posix() for page in PAGES]
    assert [path for path in paths if path not in readme] == []
