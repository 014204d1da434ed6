"""Learnable embeddings over partitions: they learn as torch's sparse embeddings do."""

import numpy as np
import pytest
import torch

import khop
from khop import nn, optim
from khop.data import RowFormat
from khop.distributed import DistDataset, GraphStore, shutdown_worker_group
from khop.distributed.tensors.tensor_requests import normal_rows
from khop.partition import RandomPartitioner
from support.cluster import jobs, store_jobs


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    root = tmp_path_factory.mktemp("embeddings")
    graph = jobs.make_graph()
    for num_parts in (1, 3):
        RandomPartitioner.from_data(graph, root / str(num_parts), num_parts).partition()
    return lambda num_parts: root / str(num_parts)


@pytest.fixture
def store(roots):
    with GraphStore(DistDataset.from_folder(roots(1))) as store:
        yield store
    shutdown_worker_group()


def of_torch(name, world_size):
    """The embeddings by torch: gradients of all trainers, duplicates summed, and their mean."""
    first = normal_rows(0, np.arange(store_jobs.NUM_ROWS), RowFormat("float32", (4,)))
    embedding = torch.nn.Embedding(store_jobs.NUM_ROWS, 4, sparse=name != "RowwiseAdagrad")
    embedding.weight.data = torch.from_numpy(first)
    options = store_jobs.OPTIMISERS[name]
    torch_name = {"SparseSGD": "SGD", "SparseAdagrad": "Adagrad"}.get(name, name)
    optimiser = (
        None
        if name == "RowwiseAdagrad"
        else getattr(torch.optim, torch_name)(embedding.parameters(), **options)
    )
    sums = torch.zeros(store_jobs.NUM_ROWS)
    for step in range(4):
        embedding.zero_grad()
        for rank in range(world_size):
            ids, factors = store_jobs.batch_of(rank, step)
            for part in (slice(30), slice(30, None)):
                loss = store_jobs.loss_of(embedding(ids[part]), factors[part])
                (loss / world_size).backward()
        if optimiser is not None:
            optimiser.step()
            continue
        with torch.no_grad():
            gradient = embedding.weight.grad
            sums += gradient.square().mean(1)
            touched = gradient.abs().sum(1) > 0
            change = options["lr"] * gradient / (sums.sqrt() + 1e-10)[:, None]
            embedding.weight[touched] -= change[touched]
    return embedding.weight.detach()[:60]


@pytest.mark.parametrize("world_size", [1, 3])
def test_optimisers_are_torchs_over_any_trainers_and_parts(roots, world_size):
    """Equal to torch's within rounding. The same bits over one part and three, and on disk."""
    results = []
    for num_parts, on_disk in ((1, None), (3, None), (1, 8 * (512 + 16))):
        homes = [rank % num_parts for rank in range(world_size)]
        rest = [part for part in range(num_parts) if part not in homes]
        arguments = {"root": str(roots(num_parts)), "homes": homes, "also_serve": {"0": rest}}
        arguments["on_disk"] = on_disk
        results.append(
            jobs.start_trainers("embed", arguments, world_size, program=store_jobs.__name__)
        )
    results = [result for trainers in results for result in jobs.finish_trainers(trainers)]
    for name in store_jobs.OPTIMISERS:
        assert len({result[name] for result in results}) == 1
        mine = torch.tensor(results[0][f"{name} values"])
        torch.testing.assert_close(mine, of_torch(name, world_size), rtol=2e-5, atol=2e-6)


def run(roots, job, num_parts, world_size, **arguments):
    homes = [rank % num_parts for rank in range(world_size)]
    rest = [part for part in range(num_parts) if part not in homes]
    arguments |= {"root": str(roots(num_parts)), "homes": homes, "also_serve": {"0": rest}}
    trainers = jobs.start_trainers(job, arguments, world_size, program=store_jobs.__name__)
    return jobs.finish_trainers(trainers)


def test_torchs_checkpoints_are_read_by_other_trainers_and_parts(roots, tmp_path):
    """Also with an optimiser, whose options and states go on as if there had been no break."""
    arguments = {"folder": str(tmp_path / "saved")}
    meeting = str(tmp_path / "a")
    first = run(roots, "torch_checkpoint", 1, 2, save=True, meeting=meeting, **arguments)
    assert first[0] == first[1] and first[0]["version"] == 3
    for num_parts, world_size in ((3, 2), (1, 3)):
        arguments["meeting"] = str(tmp_path / f"b{world_size}")
        results = run(roots, "torch_checkpoint", num_parts, world_size, save=False, **arguments)
        for result in results:
            assert result["saved"] == first[0]["saved"]
            assert (result["version"], result["lr"]) == (3, 0.3)
            assert world_size == 3 or result == first[0]  # the same batches in the next step


@pytest.mark.parametrize(("own", "clip"), [(True, False), (True, True), (False, False)])
def test_an_infinity_at_one_trainer_skips_the_step_of_all(roots, own, clip):
    """Gradients of trainers: (2, 2), then (4, inf), then (8, 8 or none), divided by 2."""
    results = run(roots, "scale", 1, 2, own=own, clip=clip)
    # A trainer's two equal rows of two values are clipped to values of 0.5.
    values = [-1.0, -1.0, -1.5] if clip else [-2.0, -2.0, -6.0 if own else -10.0]
    for rank, result in enumerate(results):
        scales = [8, 4, 4] if own or rank else [8, 8, 8]  # torch's scaler knows its own trainer
        expected = [
            [value, value, scale, version]
            for value, scale, version in zip(values, scales, (1, 2, 3), strict=True)
        ]
        np.testing.assert_allclose(result["steps"], expected, rtol=1e-5)


def test_rows_of_any_shape_and_without_gradients(store):
    embedding = nn.DistEmbedding(500, 4, store, "e")
    ids = torch.tensor([[1, 2], [499, 1]])
    rows = embedding(ids)
    assert rows.shape == (2, 2, 4) and rows.requires_grad and len(embedding.rows) == 1
    with torch.no_grad():
        assert torch.equal(embedding(ids), rows) and len(embedding.rows) == 1
    assert not list(embedding.parameters()) and "GraphTensor('e'" in repr(embedding)
    optim.SparseSGD(embedding).zero_grad()
    assert not embedding.rows and store.version == 0


def test_bfloat16_embeddings_and_several_in_one_optimiser(store):
    small = nn.DistEmbedding(500, 4, store, "small", dtype=torch.bfloat16)
    large = nn.DistEmbedding(500, 2, store, "large", init="zeros")
    optimiser = optim.SparseAdagrad([small, large], lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimiser, 1, 0.5)
    before = small.weight.pull()
    ids = torch.tensor([3, 3])
    (small(ids).sum() + large(ids).sum()).backward()
    optimiser.step()
    scheduler.step()
    assert [group["lr"] for group in optimiser.param_groups] == [0.25, 0.25]
    assert torch.equal(large.weight[3], torch.tensor([-0.5, -0.5]))
    assert torch.equal(small.weight[3], (before[3].float() - 0.5).bfloat16())
    assert torch.equal(small.weight.pull()[4:], before[4:])
    assert store["large/adagrad/sum"][3].tolist() == [4.0, 4.0]
    other = optim.SparseAdagrad([small, large])
    other.load_state_dict(optimiser.state_dict())
    assert [group["steps"] for group in other.param_groups] == [1, 1]
    assert other.param_groups[0]["lr"] == 0.25
    with pytest.raises(ValueError, match="'adagrad' with 2"):
        optim.SparseSGD([small]).load_state_dict(optimiser.state_dict())


def test_what_does_not_fit_is_refused(store):
    with pytest.raises(ValueError, match="499 embeddings fit the node types"):
        nn.DistEmbedding(499, 4, store, "e")
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        nn.DistEmbedding(500, 4, store, "e", dtype=torch.float64)
    nn.DistEmbedding(500, 4, store, "e")
    with pytest.raises(ValueError, match="one per node"):
        nn.DistEmbedding(500, 5, store, "e")
    with pytest.raises(ValueError, match="one store"):
        optim.SparseSGD([])
    assert khop.optim.SparseAdam.states == {"mean": True, "square": True}
