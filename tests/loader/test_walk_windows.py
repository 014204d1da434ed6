"""Windows of walks for PyG's models of node embeddings."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.nn import MetaPath2Vec
from torch_geometric.nn.models import node2vec

from khop.loader import MetaPath2VecLoader, Node2VecLoader
from khop.sampler import random_walk
from support.cluster import twins
from support.formats import fenced
from support.reference import oracle
from support.reference.random_walks import key_of, rows_of, walk, word_of

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "sampling-methods.md"
PATH = [twins.WRITES, twins.CITES, twins.WRITTEN]


def windows_of(walks, size):
    """PyG's: the first window of all walks, then the second of all."""
    return [w[i : i + size] for i in range(len(walks[0]) - size + 1) for w in walks]


def negatives_of(starts, counts, run_key, batch):
    """Start nodes and uniform nodes."""
    steps = [key_of(run_key, 19, step, 0, batch) for step in range(len(counts))]
    return [
        [s, *(word_of(key, i) * n >> 64 for key, n in zip(steps, counts, strict=True))]
        for i, s in enumerate(starts)
    ]


def test_windows_of_node2vec():
    data = twins.homogeneous()
    loader = Node2VecLoader(data, 5, 3, 2, 0.5, 2.0, 3, batch_size=64, seed=4)
    rows, first = rows_of(data.edge_index), None
    for epoch in range(2):
        run_key = oracle.run_key(4, epoch, 0)
        batches = list(loader)
        assert len(batches) == len(loader) == 3
        assert first is None or not torch.equal(batches[0][0], first)
        for number, (positive, negative) in enumerate(batches):
            starts = 2 * list(range(64 * number, min(64 * number + 64, 150)))
            walks = [
                walk([rows] * 4, s, i, run_key, 0.5, 2, batch=number)[0]
                for i, s in enumerate(starts)
            ]
            for walked in walks:  # they stay where they have ended
                ended = [node for node in walked if node >= 0]
                walked[len(ended) :] = [ended[-1]] * (5 - len(ended))
            assert positive.tolist() == windows_of(walks, 3)
            drawn = negatives_of(3 * starts, [150] * 4, run_key, number)
            assert negative.tolist() == windows_of(drawn, 3)
        first = batches[0][0]
    loader.set_epoch(1)
    assert torch.equal(next(iter(loader))[0], first)


def test_windows_of_metapath2vec_are_in_the_models_numbering():
    data = twins.heterogeneous()
    model = MetaPath2Vec(data.edge_index_dict, 8, PATH, 7, 4, 2, 3, data.num_nodes_dict)
    loader = MetaPath2VecLoader(data, PATH, 7, 4, 2, 3, batch_size=80, seed=1)
    ((positive, negative),) = loader
    theirs = model._sample(list(range(80)))
    assert (positive.shape, negative.shape) == tuple(t.shape for t in theirs)
    starts = torch.arange(80).repeat(2)
    walks = random_walk(data, starts, 7, metapath=PATH, seed=1)
    walks = torch.where(walks < 0, model.dummy_idx, walks + model.offset)
    assert positive.tolist() == windows_of(walks.tolist(), 4)
    assert (positive == model.dummy_idx).any()
    counts = [data[PATH[i % 3][2]].num_nodes for i in range(7)]
    drawn = np.array(negatives_of(starts.tolist() * 3, counts, oracle.run_key(1, 0, 0), 0))
    assert negative.tolist() == windows_of((drawn + model.offset.numpy()).tolist(), 4)
    model.loss(positive, negative).backward()


def test_a_model_of_node2vec_learns_from_them():
    """The tutorial's, which needs no pyg-lib, and has the loss of PyG's."""
    data = twins.homogeneous()
    names = {"torch": torch, "data": data}
    (block,) = [b for b in fenced.blocks(TUTORIAL, "{code-cell}") if "class SkipGram" in b.source]
    exec(block.compiled(TUTORIAL), names)
    model = names["SkipGram"](150, 16)
    pygs = SimpleNamespace(embedding=model.embedding, embedding_dim=16, EPS=1e-15)
    windows = names["positive"], names["negative"]
    model.embedding.weight.data *= 0.3  # PyG clips losses of scores beyond 16
    torch.testing.assert_close(model.loss(*windows), node2vec.Node2Vec.loss(pygs, *windows))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = Node2VecLoader(data, 6, 3, batch_size=50, shuffle=True, seed=0)
    losses = []
    for _ in range(8):
        for positive, negative in loader:
            optimizer.zero_grad()
            loss = model.loss(positive, negative)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_shuffled_epochs_start_from_every_node_once():
    loader = Node2VecLoader(twins.homogeneous(), 2, 2, batch_size=40, shuffle=True, seed=0)
    starts = torch.cat([positive[:, 0] for positive, _ in loader])
    assert not torch.equal(starts, torch.arange(150))
    assert torch.equal(starts.sort().values, torch.arange(150))
    some = Node2VecLoader(
        twins.homogeneous(), 2, 2, input_nodes=torch.tensor([7, 3, 5]), batch_size=2, drop_last=True
    )
    assert [positive[:, 0].tolist() for positive, _ in some] == [[7, 3]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"walk_length": 0}, "walk_length must be a positive"),
        ({"context_size": 6}, "context_size is 6, but walks have 5 nodes"),
        ({"context_size": 0}, "context_size must be a positive"),
        ({"walks_per_node": 1.5}, "walks_per_node must be a positive"),
        ({"num_negative_samples": 0}, "num_negative_samples must be a positive"),
        ({"input_nodes": torch.tensor([150])}, "input_nodes"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"p": -1}, "p must be"),
    ],
)
def test_bad_arguments(options, message):
    given = {"walk_length": 5, "context_size": 3, **options}
    with pytest.raises((ValueError, IndexError), match=message):
        Node2VecLoader(twins.homogeneous(), **given)
