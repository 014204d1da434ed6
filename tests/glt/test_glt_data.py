"""GLT's helpers, graphs, features and data sets, against SciPy; examples of docstrings."""

import ast
import doctest
import importlib
import multiprocessing
import pkgutil
import sys
import unittest.mock
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

import khop
from khop import glt
from khop.glt import utils
from support import examples
from support.cluster import servers

MODULES = [m.name for m in pkgutil.walk_packages(glt.__path__, "khop.glt.")]
WITH_SERVERS = {
    f"khop.glt.distributed.{name}" for name in ("dist_client", "dist_server", "servers")
}


def names_for(module, **given):
    """Names that the examples of a module take as given."""
    return {"torch": torch, **vars(glt.data), **vars(module), **given}


@pytest.mark.parametrize("name", ["khop.glt", *sorted({*MODULES} - WITH_SERVERS)])
def test_examples_of_docstrings(name):
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, extraglobs=names_for(module))
    assert failed == 0


@pytest.mark.process
def test_examples_of_servers_and_clients(tmp_path):
    folder, glts = tmp_path / "folder", glt.distributed
    examples.partition(folder)
    with examples.undone():
        port = glt.utils.get_free_port()
        examples.run(glts.init_server, names_for(glts, folder=folder, port=port))
    with servers.cluster(folder, [[0]]) as cluster:
        for value in (glts.DistServer, glts.request_server, glts.async_request_server):
            with examples.undone():
                examples.run(value, names_for(glts, port=cluster.port))


def test_the_core_does_not_know_glt():
    root = Path(khop.__file__).parent
    for file in root.rglob("*.py"):
        if "glt" in file.relative_to(root).parts:
            continue
        if "glt" not in (text := file.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", "")
                names = [f"{module}.{alias.name}".split(".") for alias in node.names]
                assert not any("glt" in name for name in names), file


def test_install_lets_scripts_find_the_old_name(monkeypatch):
    """Nothing of the package has been imported before, as in a script that begins with the call."""
    monkeypatch.setattr(khop, "glt", glt)  # is put back
    with unittest.mock.patch.dict(sys.modules):
        for name in list(sys.modules):
            if f"{name}.".startswith(("khop.glt.", "graphlearn_torch.")):
                del sys.modules[name]
        importlib.import_module("khop.glt").install()
        import graphlearn_torch
        from graphlearn_torch.data import Topology

        assert graphlearn_torch.data.Topology is Topology
        assert sys.modules["graphlearn_torch.data"] is sys.modules["khop.glt.data"]
        assert graphlearn_torch.NumNeighbors is not None


@pytest.mark.parametrize("layout", ["CSR", "CSC"])
def test_topologies_are_scipys(layout):
    generator = torch.Generator().manual_seed(0)
    ends = torch.randperm(90, generator=generator)[:40]
    row, col = ends // 10, ends % 10
    ids, weights = torch.randperm(40, generator=generator), torch.rand(40, generator=generator)
    made = glt.data.Topology((row, col), ids, weights, layout=layout)
    coo = scipy.sparse.coo_matrix((np.arange(40), (row.numpy(), col.numpy())))
    sparse = coo.tocsr() if layout == "CSR" else coo.tocsc()
    sparse.sort_indices()
    places = sparse.data
    assert made.indptr.tolist() == sparse.indptr.tolist()
    assert made.indices.tolist() == sparse.indices.tolist()
    assert torch.equal(made.edge_ids, ids[places])
    assert torch.equal(made.edge_weights, weights[places])
    back = glt.data.Topology(made.to_coo()[:2], made.edge_ids, layout=layout)
    assert torch.equal(back.edge_ids, made.edge_ids)
    other = glt.data.Topology(
        made.to_csc()[:2] if layout == "CSR" else made.to_csr()[:2],
        input_layout="CSC" if layout == "CSR" else "CSR",
        layout=layout,
    )
    assert torch.equal(other.indices, made.indices)


def test_features_by_id():
    rows = torch.rand(6, 3)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    feature = glt.data.Feature(rows, order, with_gpu=False)
    assert torch.equal(feature[torch.tensor([0, 5, 0])], rows[[4, 3, 4]])
    assert list(feature.shape) == [6, 3]
    gaps = glt.data.Feature(rows[:2], utils.id2idx([7, 3]), with_gpu=False)
    assert torch.equal(gaps[torch.tensor([3])], rows[1:2])
    with pytest.raises(IndexError, match="id 4 has no row"):
        gaps[torch.tensor([3, 4])]
    topology = glt.data.Topology(torch.tensor([[0, 1, 2, 3], [5, 5, 5, 2]]))
    sorted_rows, places = glt.data.sort_by_in_degree(rows, 0.0, topology)
    assert torch.equal(sorted_rows[0], rows[5])
    assert torch.equal(sorted_rows[places], rows)


def test_datasets_are_split_and_shared():
    dataset = glt.data.Dataset()
    dataset.init_graph(torch.tensor([[0, 1, 2], [1, 2, 0]]), graph_mode="CPU")
    with pytest.raises(ValueError, match="init_node_labels"):
        dataset.random_node_split(1, 1)
    dataset.init_node_features(torch.eye(3), sort_func=glt.data.sort_by_in_degree)
    dataset.init_node_labels(torch.arange(3))
    dataset.random_node_split(1, 1)
    ids = torch.cat([dataset.train_idx, dataset.val_idx, dataset.test_idx])
    assert sorted(ids.tolist()) == [0, 1, 2]
    twin = glt.data.Dataset.from_ipc_handle(dataset.share_ipc())
    assert torch.equal(twin.train_idx, dataset.train_idx)
    assert torch.equal(twin.get_node_feature()[torch.arange(3)], torch.eye(3))
    with pytest.raises(ValueError, match="cannot be split"):
        glt.data.random_split(3, 2, 2)


def _send(channel):
    channel.send({"a": torch.arange(3), "b": torch.ones(2, dtype=torch.bfloat16)})


@pytest.mark.process
def test_messages_outlive_their_sender():
    channel = glt.channel.ShmChannel(capacity=2, shm_size="1MB")
    sender = multiprocessing.get_context("fork").Process(target=_send, args=(channel,))
    sender.start()
    sender.join()
    received = channel.recv(10_000)
    assert received["a"].tolist() == [0, 1, 2]
    assert received["b"].dtype == torch.bfloat16
    with pytest.raises(glt.channel.QueueTimeoutError):
        channel.recv(10)


def test_helpers(tmp_path):
    assert utils.parse_size("2KB") == 2048
    model = torch.nn.Linear(2, 2)
    utils.save_ckpt(3, tmp_path / "c", model, torch.optim.Adam(model.parameters()), 1.5)
    other = torch.nn.Linear(2, 2)
    assert utils.load_ckpt(3, tmp_path / "c", other) == 1.5
    assert torch.equal(other.weight, model.weight)
    assert utils.load_ckpt(4, tmp_path / "c", other) == -1
    utils.append_tensor_to_file(tmp_path / "t", torch.arange(2))
    utils.append_tensor_to_file(tmp_path / "t", torch.arange(3))
    assert utils.load_and_concatenate_tensors(tmp_path / "t").tolist() == [0, 1, 0, 1, 2]
    counts: dict = {}
    utils.count_dict({"a": [1, 2]}, counts, 2)
    assert counts == {"a": [0, 2]}
    chosen = utils.index_select({"a": torch.arange(5), "b": None}, (1, 3))
    assert chosen["a"].tolist() == [1, 2]
    assert utils.get_free_port() > 0
