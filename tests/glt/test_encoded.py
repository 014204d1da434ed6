"""Folders whose features are stored in fewer bits, by GLT's names: float32, in memory."""

import torch
from torch_geometric.data import Data

import khop
from khop.glt.distributed.dataset import DistDataset
from khop.glt.partition.parts import load_partition


def test_features(tmp_path):
    rng = torch.Generator().manual_seed(0)
    graph = Data(
        x=torch.randn(90, 7, generator=rng),
        edge_index=torch.randint(0, 90, (2, 500), generator=rng),
        edge_attr=torch.rand(500, 3, generator=rng),
    )
    dtypes = {"x": "float16", "edge_attr": "bfloat16"}
    khop.partition_graph(graph, tmp_path / "p", 2, feature_dtype=dtypes)
    x, edge_attr = graph.x.half().float(), graph.edge_attr.bfloat16().float()
    *_, nodes, edges, _, _ = load_partition(str(tmp_path / "p"), 0)
    assert torch.equal(nodes.feats, x[nodes.ids])
    assert torch.equal(edges.feats, edge_attr[edges.ids])
    dataset = DistDataset()
    dataset.load(str(tmp_path / "p"), 0)
    assert torch.equal(dataset.node_features[nodes.ids], x[nodes.ids])
    assert torch.equal(dataset.edge_features[edges.ids], edge_attr[edges.ids])
