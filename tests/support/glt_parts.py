"""A small graph, and its parts as scripts for GraphLearn-for-PyTorch make them: from tensors."""

import torch

from khop import glt

NUM = 40
EDGES = torch.randint(NUM, (2, 200), generator=torch.Generator().manual_seed(0))
X = torch.arange(NUM).float().view(-1, 1)


def part_of_arrays(part, book=None):
    """Return the part with even or odd nodes, made of tensors."""
    owners = torch.arange(NUM) % 2 if book is None else book
    mine = owners[EDGES[0]] == part
    ids = mine.nonzero().view(-1)
    graph = glt.data.Graph(
        glt.data.Topology(EDGES[:, mine], ids, edge_weights=ids.float() + 1), "CPU"
    )
    own = (owners == part).nonzero().view(-1)
    features = glt.data.Feature(X[own], glt.utils.id2idx(own), with_gpu=False)
    edge_features = glt.data.Feature(ids.float().view(-1, 1), glt.utils.id2idx(ids), with_gpu=False)
    return glt.distributed.DistDataset(
        2, part, graph, features, edge_features, torch.arange(NUM), owners, owners[EDGES[0]]
    )
