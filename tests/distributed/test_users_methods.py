"""Users' own methods over partitions, samplers and servers: the in-memory loader's batches."""

import sys
import types

import pytest
import torch

from khop.distributed import (
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from khop.errors import ProtocolError
from khop.loader import NeighborLoader
from support.cluster import servers as cluster, twins
from support.installed import install
from support.users_methods import EXAMPLES, LayerImportance, Raises, TopDegree, Walks

SEEDS = torch.tensor([*range(0, 60, 3), 5, 5, 149, 11])  # twice the same, an isolated one
COMMON = {"batch_size": 8, "shuffle": True, "seed": 7}
ALL = {"collect_features": True, "with_edge": True}
MODULE = "support.users_methods"


def twin_of(method, **options):
    return NeighborLoader(twins.homogeneous(), method, SEEDS, **{**COMMON, **options})


@pytest.mark.parametrize("some_parts,method", twins.with_parts(EXAMPLES))
def test_partitions(twin_root, some_parts, method):
    """Every method in one part and in several; two epochs in one part."""
    for num_parts in some_parts:
        with twins.open_dataset(twin_root("homogeneous", num_parts), num_parts) as dataset:
            ours = DistNeighborLoader(dataset, method, SEEDS, **ALL, **COMMON)
            batches = twins.same_epochs(ours, twin_of(method), 2 if num_parts == 1 else 1)
        assert sum(batch.edge_index.size(1) for batch in batches) > 30


def test_along_edges_and_without_their_ids(twin_root):
    with twins.open_dataset(twin_root("homogeneous", 2, "plain", "by_src"), 2) as dataset:
        ours = DistNeighborLoader(dataset, Walks(4), SEEDS, **ALL, **COMMON)
        data = twins.homogeneous()
        twin = twins.make_twin(NeighborLoader, data, Walks(4), SEEDS, "by_src", **COMMON)
        twins.same_epochs(ours, twin, 1, "by_src")
        bare = DistNeighborLoader(dataset, Walks(4), SEEDS, with_edge=False, **COMMON)
        twin = twins.make_twin(NeighborLoader, data, Walks(4), SEEDS, "by_src", **COMMON)
        for batch, other in zip(bare, twin, strict=True):
            assert batch.n_id.tolist() == other.n_id.tolist()
            assert "e_id" not in batch


@pytest.mark.parametrize("subgraph_type", ["induced", "bidirectional"])
def test_other_subgraphs_of_the_nodes(twin_root, subgraph_type):
    with twins.open_dataset(twin_root("homogeneous", 2), 2) as dataset:
        options = {"subgraph_type": subgraph_type, **COMMON}
        ours = DistNeighborLoader(dataset, Walks(4), SEEDS, **ALL, **options)
        twins.same_epochs(ours, twin_of(Walks(4), subgraph_type=subgraph_type), 1)


def test_it_goes_on_after_a_stop(twin_root):
    """With another number of partitions, from the state of the loader in memory."""
    method = LayerImportance(12, 2)
    with twins.open_dataset(twin_root("homogeneous", 3), 3) as dataset:
        ours = DistNeighborLoader(dataset, method, SEEDS, **ALL, **COMMON)
        twin = twin_of(method)
        stopped = iter(twin)
        next(stopped)
        ours.load_state_dict(twin.state_dict())
        for mine, other in zip(ours, stopped, strict=True):
            twins.same_batch(mine, other)


@pytest.mark.process
def test_samplers_and_what_is_raised_in_one(twin_root, tmp_path):
    """The user's traceback is the error of the epoch; the next epoch is whole."""
    file = tmp_path / "raise"
    method = Raises(str(file), 33)
    with twins.open_dataset(twin_root("homogeneous", 2), 2) as dataset:
        options = MpDistSamplingWorkerOptions(num_workers=2, standby=True)
        make = {"worker_options": options, **ALL, **COMMON}
        ours, twin = DistNeighborLoader(dataset, method, SEEDS, **make), twin_of(method)
        twins.same_epochs(ours, twin, 1)
        file.touch()
        with pytest.raises(LookupError, match=r"a mistake of the user's at 33") as raised:
            list(ours)
        assert 'users_methods.py", line' in str(raised.value)
        assert "in next" in str(raised.value)
        with pytest.raises(LookupError, match="a mistake of the user's"):
            list(twin)
        file.unlink()
        twins.same_epochs(ours, twin, 1)
        ours.shutdown()
        ours = DistNeighborLoader(dataset, TopDegree(3), SEEDS, **make)
        twins.same_epochs(ours, twin_of(TopDegree(3)), 1)
        ours.shutdown()


def test_classes_that_samplers_cannot_import(twin_root, monkeypatch):
    """An error when the loader is made; without samplers they draw."""
    with twins.open_dataset(twin_root("homogeneous", 1), 1) as dataset:
        monkeypatch.setattr(Walks, "__module__", "__main__")
        ours = DistNeighborLoader(dataset, Walks(2), SEEDS, **ALL, **COMMON)
        twins.same_epochs(ours, twin_of(Walks(2)), 1)
        with pytest.raises(ValueError, match=r"Walks is defined in the script .* into a module"):
            DistNeighborLoader(
                dataset, Walks(2), SEEDS, worker_options=twins.workers(1), **ALL, **COMMON
            )


@pytest.mark.process
def test_a_module_that_samplers_do_not_find(twin_root, monkeypatch):
    """The trainer knows it, by means that its samplers have not."""
    ghost = types.ModuleType("khop_test_ghost")
    exec(
        "from support.users_methods import Walks, dataclass, register\n"
        "@register\n@dataclass(frozen=True)\nclass Ghost(Walks):\n    pass\n",
        ghost.__dict__,
    )
    monkeypatch.setitem(sys.modules, "khop_test_ghost", ghost)
    with (
        twins.open_dataset(twin_root("homogeneous", 1), 1) as dataset,
        pytest.raises(ImportError, match=r"cannot import 'khop_test_ghost'.*PYTHONPATH"),
    ):
        options = {"worker_options": twins.workers(1), **ALL, **COMMON}
        list(DistNeighborLoader(dataset, ghost.Ghost(2), SEEDS, **options))


def remote(method, **options):
    """The loader of a client; samplers write into its memory, or a receiver does."""
    options = RemoteDistSamplingWorkerOptions(num_workers=1, **options)
    return DistNeighborLoader(None, method, SEEDS, worker_options=options, **ALL, **COMMON)


@pytest.mark.process
def test_graph_servers(tmp_path, monkeypatch):
    """Two servers that were started with the module draw the batches; near clients and others.

    The module is named by a package that is installed.
    """
    install(tmp_path, "khop-test", f"[khop.methods]\nusers = {MODULE}\n")
    monkeypatch.syspath_prepend(tmp_path)
    root = tmp_path / "parts"
    twins.partitioned(twins.homogeneous(), root, 3)
    with (
        cluster.cluster(root, [[0, 2], [1]], 1, methods=["users"]) as servers,
        servers.client(),
    ):
        for method, shared_memory in (
            (TopDegree(3), True),
            (LayerImportance(12), False),
            (Walks(5), True),
        ):
            ours = remote(method, shared_memory=shared_memory)
            twins.same_epochs(ours, twin_of(method), 1)
            ours.shutdown()
        (tmp_path / "raise").touch()
        ours = remote(Raises(str(tmp_path / "raise"), 33), shared_memory=False)
        with pytest.raises(LookupError, match=r"a mistake of the user's at 33") as raised:
            list(ours)
        assert 'users_methods.py", line' in str(raised.value)
        ours.shutdown()


@pytest.mark.process
def test_servers_without_the_module(tmp_path, monkeypatch):
    """What a client names is not imported, installed or not; the error says what to name."""
    install(tmp_path, "khop-test", f"[khop.methods]\nusers = {MODULE}\n")
    monkeypatch.syspath_prepend(tmp_path)
    root = tmp_path / "parts"
    twins.partitioned(twins.homogeneous(), root, 1)
    with cluster.cluster(root, [[0]], 1) as servers, servers.client():
        with pytest.raises(ProtocolError, match=r"no sampling method .*khop serve --methods"):
            list(remote(Walks(5)))
        ours = remote([2])
        assert len(list(ours)) == 3
        ours.shutdown()


@pytest.mark.process
def test_servers_of_modules_that_are_none(tmp_path):
    root = tmp_path / "parts"
    twins.partitioned(twins.homogeneous(), root, 1)
    for methods, error, message in (
        (["khop_test_missing"], ImportError, "cannot import 'khop_test_missing'"),
        ("support", TypeError, "methods must be a list of names of modules"),
    ):
        with pytest.raises(error, match=message), cluster.cluster(root, [[0]], methods=methods):
            pass
