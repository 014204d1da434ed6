"""Partition servers give rows of their part's output files, and of nothing else."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.data import HeteroData

from khop.channel.message import pack, unpack
from khop.distributed.inference.files import RowSpec, RowWriter, Share, check_shares
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import PROTOCOL
from khop.distributed.rpc.state_handler import users_requests
from khop.distributed.tensors import row_files
from khop.distributed.tensors.row_files import output_file
from khop.partition import PartitionFolder, RandomPartitioner
from khop.storage.part import Part

GOOD = {
    "op": "rows",
    "protocol": PROTOCOL,
    "id": 7,
    "part": 2,
    "layer": 1,
    "node_type": 0,
    "file": "part-2.npy",
}


@pytest.fixture
def root(tmp_path):
    """Outputs of part 2 of a node type with a strange name, layers 0 and 1."""
    for layer in (0, 1):
        file = output_file(tmp_path / "out", layer, "../up", "part-2.npy")
        writer = RowWriter(file, RowSpec("float32", "float32", (2,)), 5)
        for first in (0, 3):
            count = min(3, 5 - first)
            rows = 10 * layer + np.arange(first, first + count, dtype=np.float32)
            writer.append(np.stack([rows, -rows], 1))
        assert not file.exists()
        writer.finish()
    (tmp_path / "secret.npy").write_bytes((file).read_bytes())
    (tmp_path / "out/layer-1/secret.npy").write_bytes((file).read_bytes())
    return tmp_path / "out"


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    """Part 2 of a graph with that node type."""
    graph = HeteroData()
    graph["../up"].num_nodes, graph["other"].num_nodes = 15, 3
    graph["../up", "r", "other"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    folder = tmp_path_factory.mktemp("outputs") / "parts"
    RandomPartitioner.from_data(graph, folder, 3).partition()
    return Part(PartitionFolder(folder), 2)


@pytest.fixture
def handler(root, part):
    """Answers for part 2. The folder is named when the server starts."""
    return RequestHandler(part, types=users_requests([f"{row_files.__name__}:{root}"], part))


def ask(handler, rows, **change):
    """Header and arrays of the reply."""
    return unpack(handler(pack({**GOOD, **change}, [np.asarray(rows)])))


def test_rows(handler, root):
    """Those asked for, in the order asked for, of the layer asked for, before and after others."""
    for layer in (1, 0, 1):
        reply, (rows,) = ask(handler, [4, 0, 4], layer=layer)
        assert reply == {"id": 7, "incarnation": handler.incarnation}
        assert rows[:, 0].tolist() == [10 * layer + 4, 10 * layer, 10 * layer + 4]
    assert ask(handler, np.empty(0, np.int64))[1][0].shape == (0, 2)
    assert {p.relative_to(root).parts[0] for p in root.rglob("*")} == {"layer-0", "layer-1"}


def test_hostile_requests(handler):
    """Fields out of their range, and files that were not announced, are answered with an error."""
    for change in (
        *({"part": 0}, {"op": "fetch"}, {"protocol": 0}),
        *({"layer": layer} for layer in (2, -1, "1", True, None, 2**70, 1 << 16)),
        *({"node_type": node_type} for node_type in (2, None, 1)),
        *({"file": file} for file in ("part-1.npy", "../secret.npy", "../../secret.npy")),
        *({"file": file} for file in ("/etc/passwd", ["part-2.npy"], None, ".part-2.npy.tmp")),
        *({"file": file} for file in ("part-2-share-1.npy", "part-2-share-../part-2.npy")),
    ):
        reply, arrays = ask(handler, [0], **change)
        assert "error" in reply and not arrays, change
    assert "error" not in ask(handler, [0])[0]


def test_rows_that_do_not_exist(handler):
    """Rows are checked before memory is touched."""
    for rows in ([5], [-1], [2**62], [0.5], [[0]], np.zeros(1, np.int32)):
        reply, arrays = ask(handler, rows)
        assert reply["error"]["type"] in ("IndexError", "ProtocolError") and not arrays


@given(st.lists(st.binary(max_size=200), max_size=4))
@settings(max_examples=100)
def test_any_frames(part, frames):
    """Frames of any bytes are answered with an error."""
    types = row_files.request_types(part, "/nowhere")
    reply, _ = unpack(RequestHandler(part, types=types)(frames))
    assert reply["error"]["type"] == "ProtocolError"


def test_files_are_whole_or_absent(tmp_path):
    """A file that lacks rows gets no name; one that is given up leaves nothing."""
    writer = RowWriter(tmp_path / "a/part-0.npy", RowSpec("int8", "int8", ()), 3)
    writer.append(np.zeros(2, np.int8))
    with pytest.raises(ValueError, match=r"part-0.npy' lacks 1 of its rows"):
        writer.finish()
    assert [p.name for p in (tmp_path / "a").iterdir()] == [".part-0.npy.tmp"]
    writer.abandon()
    assert not list((tmp_path / "a").iterdir())


def test_shares_hold_every_node_once():
    """Gaps, overlaps and missing ends are errors."""

    def share(part, *ranges):
        return Share(0, part, 0, 1, list(ranges))

    check_shares([share(0, (0, 3), (0, 0)), share(1, (3, 5), (0, 2))], [5, 2])
    for wrong in ((2, 5), (4, 5), (3, 4), (3, 6)):
        with pytest.raises(ValueError, match="do not divide the 5 nodes of type 0"):
            check_shares([share(0, (0, 3), (0, 0)), share(1, wrong, (0, 2))], [5, 2])


@pytest.mark.process
def test_runs_without_torch():
    """The program can be imported where torch cannot."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['torch_geometric'] = None; "
        f"sys.path[:] = {sys.path!r}; import khop.distributed.tensors.row_files"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
