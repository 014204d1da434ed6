"""What batches must hold: neighbourhoods walked along edge lists, in plain Python.

Nothing here uses khop. `walk` takes the arguments of a loader and returns the batch that they call
for; where draws are left to chance it is told what was drawn, checks that it could be drawn, and
works out everything else. `check` compares a batch of a loader with it, attribute by attribute.

Tests' graphs name their attributes so that nobody has to guess what they belong to: those of edges
begin with 'edge_', 'time' is of nodes.
"""

import torch
from torch_geometric.data import HeteroData


class View:
    """A Data or HeteroData as lists; the only types of a Data are None.

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
        self.rows = {t: self._rows(t) for t in self.edge_types}

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
        """Of an edge; None: it has none."""
        if edge_type in self.edge_times:
            return self.edge_times[edge_type][edge]
        times = self.node_times.get(self.neighbor_type(edge_type))
        return None if times is None else times[neighbor]

    def _rows(self, edge_type):
        """{node: [(neighbour, edge)]}: by time, of equal times in the order of the edge list."""
        src, dst = self.ends[edge_type]
        rows = {}
        nodes, neighbors = (src, dst) if self.backward else (dst, src)
        for edge, (v, u) in enumerate(zip(nodes, neighbors, strict=True)):
            rows.setdefault(v, []).append((u, edge))
        if self.has_times(edge_type):
            for row in rows.values():
                row.sort(key=lambda entry: self.time(edge_type, *entry))
        return rows


class Walk:
    """A batch that grows hop by hop.

    Attributes:
        nodes: {node type: [(tree, id)]} in the batch's order.
        edges: {edge type: [(row, col, edge)]}, likewise.
        nodes_per_hop: {node type: [count]}.
        edges_per_hop: {edge type: [count]}.
    """

    def __init__(self, nodes, edges):
        self.nodes, self.edges = nodes, edges
        self.nodes_per_hop = {t: [] for t in nodes}
        self.edges_per_hop = {t: [] for t in edges}
        self._numbers = {t: {} for t in nodes}
        self._end = dict.fromkeys(nodes, 0)

    def add_seeds(self, node_type, members):
        """Each gets a number; of equal ones the first is found."""
        for member in members:
            self._numbers[node_type].setdefault(member, len(self.nodes[node_type]))
            self.nodes[node_type].append(member)
        self.end_hop()

    def number_of(self, node_type, tree, node):
        """A node's number; it is appended if it has none."""
        nodes = self.nodes[node_type]
        number = self._numbers[node_type].setdefault((tree, node), len(nodes))
        if number == len(nodes):
            nodes.append((tree, node))
        return number

    def find(self, node_type, tree, node):
        """A node's number or None."""
        return self._numbers[node_type].get((tree, node))

    def frontier(self, node_type):
        """(number, tree, id) of the nodes that the last hop added."""
        end = self._end[node_type]
        first = end - self.nodes_per_hop[node_type][-1]
        return [(i, *self.nodes[node_type][i]) for i in range(first, end)]

    def end_hop(self):
        for t, members in self.nodes.items():
            self.nodes_per_hop[t].append(len(members) - self._end[t])
            self._end[t] = len(members)


def draws(view, edge_type, node, fanout, time, replace=False, last=False):
    """What a row may give: (entries that may be drawn, their number; None: just these, in order).

    Entries are (neighbour, edge).
    """
    row = view.rows[edge_type].get(node, [])
    if time is not None and view.has_times(edge_type):
        row = [entry for entry in row if view.time(edge_type, *entry) <= time]
    weights = view.weights.get(edge_type)
    eligible = [e for e in row if weights is None or weights[e[1]] > 0]
    if last and view.has_times(edge_type) and 0 <= fanout < len(eligible):
        eligible = eligible[len(eligible) - fanout :]
        row = row[row.index(eligible[0]) :] if eligible else []
    if fanout == 0 or not eligible:
        return [], 0
    if fanout < 0 or (not replace and fanout >= len(row)):
        return eligible, None
    return eligible, fanout if replace else min(fanout, len(eligible))


def walk(view, num_neighbors, seed_type, seeds, times=None, drawn=None, **options):
    """The batch of some seeds.

    Args:
        view: the graph.
        num_neighbors: as loaders take it.
        seed_type: None in a homogeneous graph.
        seeds: ids.
        times: of seeds; default: their own, where nodes have times.
        drawn: {edge type: edges in the order of the batch}, where draws are left to chance.
        **options: `replace`, `disjoint`, `temporal_strategy`, as loaders take them.
    """
    temporal = bool(view.node_times or view.edge_times)
    if temporal and times is None:
        times = [view.node_times[seed_type][v] for v in seeds]
    trees = range(len(seeds)) if temporal or options.get("disjoint") else [0] * len(seeds)
    out = Walk({t: [] for t in view.node_types}, {t: [] for t in view.edge_types})
    out.add_seeds(seed_type, zip(trees, seeds, strict=True))
    how = {
        "replace": options.get("replace", False),
        "last": options.get("temporal_strategy") == "last",
    }
    fanouts = num_neighbors
    if not isinstance(fanouts, dict):
        fanouts = dict.fromkeys(view.edge_types, num_neighbors)
    for hop in range(len(next(iter(fanouts.values()), []))):
        for edge_type in view.edge_types:
            edges = []
            for col, tree, node in out.frontier(view.frontier_type(edge_type)):
                time = times[tree] if temporal else None
                found, count = draws(view, edge_type, node, fanouts[edge_type][hop], time, **how)
                if count is not None:
                    place = len(out.edges[edge_type]) + len(edges)
                    found = _drawn(found, drawn[edge_type][place : place + count], how["replace"])
                for u, edge in found:
                    row = out.number_of(view.neighbor_type(edge_type), tree, u)
                    edges.append((*((col, row) if view.backward else (row, col)), edge))
            out.edges[edge_type] += edges
            out.edges_per_hop[edge_type].append(len(edges))
        out.end_hop()
    return out


def _drawn(eligible, drawn, replace):
    """The entries that were drawn, which must be eligible and, without replacement, distinct."""
    by_edge = {edge: (u, edge) for u, edge in eligible}
    assert all(edge in by_edge for edge in drawn), (drawn, eligible)
    assert replace or len(set(drawn)) == len(drawn), drawn
    return [by_edge[edge] for edge in drawn]


def induced(view, out, times=None):
    """{edge type: (row, col, edge)}: all edges among the nodes of a batch, of one tree each.

    Args:
        view: the graph.
        out: the batch as drawn.
        times: of its trees; only edges that are not later are there.
    """
    found = {t: [] for t in view.edge_types}
    for edge_type, edges in found.items():
        for col, (tree, node) in enumerate(out.nodes[view.frontier_type(edge_type)]):
            time = None if times is None else times[tree]
            for u, edge in draws(view, edge_type, node, -1, time)[0]:
                row = out.find(view.neighbor_type(edge_type), tree, u)
                if row is not None:
                    edges.append((*((col, row) if view.backward else (row, col)), edge))
    return found


def bidirectional(view, out):
    """{edge type: [(row, col)]}: the distinct edges of a batch and their reverses.

    By PyG's rules of what reverses what; by column and row, but a mirror image as its original.
    """
    pairs = {t: [(row, col) for row, col, _ in edges] for t, edges in out.edges.items()}
    result = dict(pairs)
    for t, drawn in pairs.items():
        src, name, dst = t or (None, "", None)
        if name.startswith("rev_"):
            continue
        named = (dst, f"rev_{name}", src)
        back = [k for k in pairs if k and (k[2], k[0]) == (src, dst)]
        reverse = (
            named if named in pairs else t if src == dst else back[0] if len(back) == 1 else None
        )
        if t is None or reverse is not None:
            both = {*drawn, *(pair[::-1] for pair in pairs[reverse])}
            result[t] = sorted(both, key=lambda pair: pair[::-1])
        if named in pairs:
            result[named] = [pair[::-1] for pair in result[t]]
    return result


def check(view, batch, num_neighbors, seeds, times=None, **options):
    """Every attribute of a directional batch, and that there are no others.

    Args:
        view: the graph.
        batch: what a loader made.
        num_neighbors: that of the loader.
        seeds: ids, or (node type, ids).
        times: [number of seeds] that were given.
        **options: of the loader.

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
    """Stores of a batch by type; that of a Data is the Data."""

    def __init__(self, batch):
        self.batch = batch

    def __call__(self, kind):
        return self.batch if kind is None else self.batch[kind]


def assert_nodes(view, batch, out, seed_type, num_seeds, times):
    """Nodes of a batch: ids, trees, attributes, and what the seeds have."""
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
    """Edges belong to their ids, in either direction if the batch is bidirectional."""
    store, whole = Stores(batch)(edge_type), view.store(edge_type)
    for name in attributes(whole, of_edges=True):
        assert torch.equal(store[name], torch.as_tensor(whole[name])[store.e_id])


def attributes(store, of_edges):
    """Names of the attributes of nodes or edges in a store of the whole graph."""
    hetero_edges = isinstance(getattr(store, "_key", None), tuple)
    found = [n for n in store.keys() if n not in ("edge_index", "num_nodes", "adj_t")]  # noqa: SIM118
    return [n for n in found if (hetero_edges or n.startswith("edge_")) == of_edges]


def names(batch):
    """Names of all attributes, by type."""
    if not isinstance(batch, HeteroData):
        return {None: set(batch.keys())}
    return {kind: set(batch[kind].keys()) for kind in (*batch.node_types, *batch.edge_types)}


def expected_names(view, seed_type, times=None, directional=True, edge_ids=None, **options):
    """Names of the attributes that a batch has, by type.

    Args:
        view: the graph.
        seed_type: of the seeds.
        times: those that were given.
        directional: edges are grouped by hop.
        edge_ids: {edge type: whether its edges have ids}; default: all have.
        **options: of the loader.
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
