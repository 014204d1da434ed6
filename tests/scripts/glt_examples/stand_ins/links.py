"""Data set for GLT's template of preprocessing for link prediction: groups, and links in them."""

from __future__ import annotations

import torch

from data import planted


class Links:
    """The attributes that the template reads of its data set; paths are not needed."""

    def __init__(self, feat_src_path: str, graph_src_path: str) -> None:
        del feat_src_path, graph_src_path
        self.feats, self.graph, _ = planted(1000, 8, 16)
        self.edge_weights = torch.rand(self.graph.size(1)) + 0.5
        self.node_num = 1000
        order = torch.randperm(self.graph.size(1))
        links = self.graph.t()[order]
        self.train_idx, self.val_idx, self.test_idx = links[:3000], links[3000:3500], links[3500:]
