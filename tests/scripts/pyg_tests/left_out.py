"""Tests of PyG's that fail with khop in PyG's place, and why none of them is khop's fault.

They are run all the same: one that passes is an error, for it belongs here no longer.
"""

from __future__ import annotations

_SPARSE = "the test itself makes matrices of torch-sparse"
_MORE_ATTRIBUTES = "counts attributes of batches: khop's have n_id and e_id, too"
_FAN_OUTS = "reads num_neighbors.values: fan-outs of khop's samplers are lists"
_PRIVATE = "PyG's bidirectional sampler calls private methods of PyG's own sampler"

# {what is swapped: {test, or one of its cases: reason}}
LEFT_OUT = {
    "loaders": {
        "test_cluster_gcn": "calls ClusterData._partition, which is private, and expects the edges "
        "of a node by their other ends: those of khop's batches are in the graph's order",
        "test_cluster_gcn_correctness": "expects the edges of a node by their other ends: those "
        "of khop's batches are in the graph's order",
        "test_dataloader_with_dynamic_batches": "expects an item twice: PyG's sampler repeats one "
        "after it left out another, khop's delivers each once",
        "test_eval_loader_kwargs": _FAN_OUTS,
        "test_heterogeneous_random_node_loader": _MORE_ATTRIBUTES,
        "test_hgt_loader": _SPARSE,
        "test_random_node_loader": _MORE_ATTRIBUTES,
        "test_shadow_k_hop_sampler": _SPARSE,
    },
    "samplers": {
        "test_bidirectional_neighbor_sampler": _PRIVATE,
        "test_eval_loader_kwargs": _FAN_OUTS,
        "test_hgt_loader": _SPARSE,
        "test_homogeneous_neighbor_sampler_weighted_backwards[remote]": "expects that weights of "
        "stores are refused: khop draws by them",
        "test_neighbor_sampler_backwards_not_supported": "expects that draws along the edges' "
        "direction refuse times: khop's take them",
    },
}
