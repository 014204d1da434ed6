"""Expected content of loaders' batches, by the reference sampler over PyG's graphs.

Nothing here uses khop. `walk` takes the arguments of a loader, and returns the batch that they
should give. Where draws are random, it gets the drawn edges, checks that they are possible, and
computes everything else. `check` compares a loader's batch with it, attribute by attribute.

Names of attributes in tests' graphs show their owner: edge attributes begin with 'edge_', and
'time' is of nodes.
"""

from dataclasses import dataclass

import torch
from torch_geometric.data import HeteroData

from support.reference.sampler import (
    EdgeType,
    Entry,
    GivenDraws,
    Options,
    Row,
    Sampler,
    Seeds,
    add_reverses,
)


class View:
    """A Data or HeteroData as lists. The only types of a Data are None.

    Args:
        data: the graph.
        time_attr: name of the times, of nodes or edges.
        weight_attr: name of the weights.
        backward: neighbours are destinations.
    """

    def __init__(self, data, time_attr=None, weight_attr=None, backward=False):
        self.data, self.backward = data, backward
        self.hetero = isinstance(data, HeteroData)
        self.node_types = data.node_types if self.hetero else [None]
        self.edge_types = data.edge_types if self.hetero else [None]
        of_edges = str(time_attr).startswith("edge_")
        self.weights = self._collect(self.edge_types, weight_attr)
        self.edge_times = self._collect(self.edge_types, time_attr if of_edges else None)
        self.node_times = self._collect(self.node_types, None if of_edges else time_attr)
        self.ends = {t: self.store(t).edge_index.tolist() for t in self.edge_types}
        self.relations = [self._relation(t) for t in self.edge_types]

    def store(self, kind):
        return self.data[kind] if self.hetero else self.data

    def _collect(self, kinds, name):
        stores = {kind: self.store(kind) for kind in kinds if name is not None}
        return {k: torch.as_tensor(s[name]).tolist() for k, s in stores.items() if name in s}

    def frontier_type(self, edge_type):
        return edge_type and edge_type[0 if self.backward else 2]

    def neighbor_type(self, edge_type):
        return edge_type and edge_type[2 if self.backward else 0]

    def has_times(self, edge_type):
        return edge_type in self.edge_times or self.neighbor_type(edge_type) in self.node_times

    def time(self, edge_type, neighbor, edge):
        """Return the time of an edge, or of its neighbour. None if there are no times."""
        if edge_type in self.edge_times:
            return self.edge_times[edge_type][edge]
        times = self.node_times.get(self.neighbor_type(edge_type))
        return None if times is None else times[neighbor]

    def _relation(self, edge_type):
        """Return an edge type in the reference's form, rows by time, then in list order."""
        source, destination = self.neighbor_type(edge_type), self.frontier_type(edge_type)
        src, dst = self.ends[edge_type]
        nodes, neighbors = (src, dst) if self.backward else (dst, src)
        weights = self.weights.get(edge_type)
        rows = {v: Row(v, []) for v in range(self.store(destination).num_nodes)}
        for edge, (v, u) in enumerate(zip(nodes, neighbors, strict=True)):
            weight = None if weights is None else weights[edge]
            rows[v].entries.append(Entry(u, edge, self.time(edge_type, u, edge), weight))
        if self.has_times(edge_type):
            for row in rows.values():
                row.entries.sort(key=lambda entry: entry.time)
        return EdgeType(self.node_types.index(source), self.node_types.index(destination), rows)

    def oriented(self, edges):
        """Return {edge type: (row, col, edge)} of the reference's lists, as PyG orients edges."""
        if self.backward:
            edges = [[(col, row, edge) for row, col, edge in of_type] for of_type in edges]
        return dict(zip(self.edge_types, edges, strict=True))


@dataclass
class Walk:
    """The batch that a loader should make.

    Attributes:
        sampler: the reference sampler that has drawn it.
        nodes: {node type: [(tree, id)]} in the batch's order.
        edges: {edge type: [(row, col, edge)]}, likewise.
        nodes_per_hop: {node type: [count]}.
        edges_per_hop: {edge type: [count]}.
    """

    sampler: Sampler
    nodes: dict
    edges: dict
    nodes_per_hop: dict
    edges_per_hop: dict


def walk(view, num_neighbors, seed_type, seeds, times=None, drawn=None, **options):
    """Return the batch of these seeds.

    Args:
        view: the graph.
        num_neighbors: as loaders take it.
        seed_type: the seeds' node type. None in a homogeneous graph.
        seeds: ids.
        times: times of the seeds. If None, their own where nodes have times.
        drawn: {edge type: edges in the order of the batch}, where draws are random.
        **options: `replace`, `disjoint`, `temporal_strategy`, as loaders take them.
    """
    temporal = bool(view.node_times or view.edge_times)
    if temporal and times is None:
        times = [view.node_times[seed_type][v] for v in seeds]
    fanouts = num_neighbors
    if not isinstance(fanouts, dict):
        fanouts = dict.fromkeys(view.edge_types, num_neighbors)
    how = Options(
        [fanouts[t] for t in view.edge_types],
        [t in view.weights for t in view.edge_types],
        replace=options.get("replace", False),
        last=options.get("temporal_strategy") == "last",
        disjoint=temporal or options.get("disjoint", False),
    )
    given = GivenDraws(how, [(drawn or {}).get(t, []) for t in view.edge_types])
    sampler = Sampler(len(view.node_types), view.relations, how, given)
    batch = sampler.draw([Seeds(view.node_types.index(seed_type), seeds, times)])
    nodes = [
        list(zip(*of_type, strict=True)) for of_type in zip(batch.trees, batch.nodes, strict=True)
    ]
    return Walk(
        sampler,
        dict(zip(view.node_types, nodes, strict=True)),
        view.oriented(batch.edges),
        dict(zip(view.node_types, batch.nodes_per_hop, strict=True)),
        dict(zip(view.edge_types, batch.edges_per_hop, strict=True)),
    )


def induced(view, out):
    """Return {edge type: (row, col, edge)}: all edges among a batch's nodes, within each tree.

    In temporal sampling, edges later than their tree's seed are left out.
    """
    return view.oriented([out.sampler.induced(r) for r in range(len(view.edge_types))])


def bidirectional(view, out):
    """Return {edge type: [(row, col)]}: the distinct edges of a batch and their reverses.

    Types are reversed by PyG's rules. Edges are ordered by column and row, but a mirror image as
    its original.
    """
    types = list(view.edge_types)
    reversals = []
    for t in types:
        src, name, dst = t or (None, "", None)
        if name.startswith("rev_"):
            continue
        named = (dst, f"rev_{name}", src)
        back = [k for k in types if k and (k[2], k[0]) == (src, dst)]
        if named in types:
            reversals.append((types.index(t), types.index(named), True))
        elif src == dst:
            reversals.append((types.index(t), types.index(t), False))
        elif len(back) == 1:
            reversals.append((types.index(t), types.index(back[0]), False))
    edges = add_reverses([out.edges[t] for t in types], reversals)
    return {t: [(r, c) for r, c, _ in of_type] for t, of_type in zip(types, edges, strict=True)}


def check(view, batch, num_neighbors, seeds, times=None, **options):
    """Check every attribute of a directional batch, and that there are no others.

    Args:
        view: the graph.
        batch: a loader's batch.
        num_neighbors: the loader's.
        seeds: ids, or (node type, ids).
        times: [number of seeds] times that the loader got.
        **options: the loader's options.

    Returns:
        The `Walk`.
    """
    seed_type, ids = seeds if isinstance(seeds, tuple) else (None, seeds)
    of = Stores(batch)
    drawn = {t: of(t).e_id.tolist() for t in view.edge_types}
    out = walk(view, num_neighbors, seed_type, ids, times, drawn, **options)
    assert_nodes(view, batch, out, seed_type, len(ids), times)
    for t in view.edge_types:
        row, col = of(t).edge_index.tolist()
        assert list(zip(row, col, of(t).e_id.tolist(), strict=True)) == out.edges[t]
        assert of(t).num_sampled_edges == out.edges_per_hop[t]
        assert_edge_attributes(view, batch, t)
    for t in view.node_types:
        assert of(t).num_sampled_nodes == out.nodes_per_hop[t]
    assert names(batch) == expected_names(view, seed_type, times, directional=True, **options)
    return out


class Stores:
    """Stores of a batch by type. The store of a Data is the Data itself."""

    def __init__(self, batch):
        self.batch = batch

    def __call__(self, kind):
        return self.batch if kind is None else self.batch[kind]


def assert_nodes(view, batch, out, seed_type, num_seeds, times):
    """Check a batch's nodes: ids, trees, attributes, and the attributes of seeds."""
    of = Stores(batch)
    for t in view.node_types:
        store, whole = of(t), view.store(t)
        assert store.n_id.tolist() == [node for _, node in out.nodes[t]]
        if "batch" in store:
            assert store.batch.tolist() == [tree for tree, _ in out.nodes[t]]
        for name in attributes(whole, of_edges=False):
            assert torch.equal(store[name], torch.as_tensor(whole[name])[store.n_id])
        assert store.num_nodes == len(store.n_id)
    seeds = of(seed_type)
    assert seeds.batch_size == len(seeds.input_id) == num_seeds
    assert (seeds.seed_time.tolist() if "seed_time" in seeds else None) == (times and list(times))


def assert_edge_attributes(view, batch, edge_type):
    """Check that edges belong to their ids, in either direction if the batch is bidirectional."""
    store, whole = Stores(batch)(edge_type), view.store(edge_type)
    for name in attributes(whole, of_edges=True):
        assert torch.equal(store[name], torch.as_tensor(whole[name])[store.e_id])


def attributes(store, of_edges):
    """Return the names of the attributes of nodes or edges in a store of the whole graph."""
    hetero_edges = isinstance(getattr(store, "_key", None), tuple)
    found = [n for n in store.keys() if n not in ("edge_index", "num_nodes", "adj_t")]  # noqa: SIM118
    return [n for n in found if (hetero_edges or n.startswith("edge_")) == of_edges]


def names(batch):
    """Return the names of all attributes of a batch, by type."""
    if not isinstance(batch, HeteroData):
        return {None: set(batch.keys())}
    return {kind: set(batch[kind].keys()) for kind in (*batch.node_types, *batch.edge_types)}


def expected_names(view, seed_type, times=None, directional=True, edge_ids=None, **options):
    """Return the names of the attributes that a batch should have, by type.

    Args:
        view: the graph.
        seed_type: node type of the seeds.
        times: times that the loader got.
        directional: edges are grouped by hop.
        edge_ids: {edge type: whether its edges have ids}. If None, all have.
        **options: the loader's options.
    """
    trees = options.get("disjoint") or view.node_times or view.edge_times
    found = {}
    for t in view.node_types:
        found[t] = {"n_id", *view.store(t).keys()}
        found[t] |= {"batch"} if trees else set()
        found[t] |= {"num_sampled_nodes"} if directional else set()
    found[seed_type] |= {"input_id", "batch_size"} | ({"seed_time"} if times is not None else set())
    for t in view.edge_types:
        store = view.store(t)
        named = {"edge_index", "e_id", *attributes(store, of_edges=True)}
        if edge_ids is not None and not edge_ids[t]:
            named = {"edge_index"}
        named |= {"num_sampled_edges"} if directional else set()
        found[t] = found.get(t, set()) | named
    return found
