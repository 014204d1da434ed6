"""Arguments that make no sense: an exception that says so, whatever the option, and no crash."""

import numpy as np
import pytest

from khop import _native
from support.kernels import hop_calls

ONE, TWO = np.zeros(1, np.int64), np.array([0, 1])


def ring(times=False, weights=False, num_nodes=4, **options):
    """Each of four nodes has two neighbours: the next node and the one after it."""
    indptr = np.arange(5) * 2
    indices = np.array([[(i + 1) % 4, (i + 2) % 4] for i in range(4)]).ravel()
    if times:
        options["times"] = np.tile([1, 2], 4)
    if weights:
        options["weight_sums"], options["weight_guide"] = _native.weight_table(indptr, np.ones(8))
    return _native.Csr(indptr, indices, **options)


def subgraph(disjoint=False, num_nodes=4, relations=1, seeds=TWO, times=None):
    """A batch of two seeds whose neighbours are still to be drawn."""
    batch = _native.Subgraph([num_nodes], [(0, 0)] * relations, True, disjoint)
    batch.begin()
    batch.add_seeds(0, seeds, times)
    return batch


def read(batch):
    """Everything that a batch has to say."""
    node = np.empty(batch.num_nodes(0), np.int64)
    row, col, edge = np.empty((3, batch.num_edges(0)), np.int64)
    batch.write_nodes(0, node)
    batch.write_edge_index(0, row, col)
    batch.write_edges(0, edge)
    return [array.tolist() for array in (node, row, col, edge)]


def test_sizes_of_node_types():
    with pytest.raises(ValueError, match="a node type cannot have -1 nodes"):
        _native.Subgraph([3, -1], [], True)
    with pytest.raises(ValueError, match="cannot have -4 nodes"):
        _native.induce_rows(ring(), ONE, ONE, -4, False)


@pytest.mark.parametrize("relation", [-1, 1, 2**40])
def test_no_such_edge_type(relation):
    batch, graph, owners = subgraph(), ring(), np.zeros(2, np.int32)
    for call in (
        lambda: hop_calls.hop(batch, relation, graph, 1, False, 0),
        lambda: batch.exclude(relation, TWO, TWO),
        lambda: batch.merge(relation, owners, []),
        lambda: batch.merge_induced(relation, owners, []),
        lambda: batch.num_edges(relation),
        lambda: batch.edges_per_hop(relation),
        lambda: batch.write_edges(relation, np.empty(0, np.int64)),
        lambda: batch.write_edge_index(relation, *np.empty((2, 0), np.int64)),
    ):
        with pytest.raises(IndexError, match="no such edge type"):
            call()
    if relation < 2**31:
        for reversal in ((relation, 0, False), (0, relation, True)):
            with pytest.raises(IndexError, match="no such edge type"):
                batch.add_reverses([reversal], False)


@pytest.mark.parametrize("node_type", [-1, 1, 2**40])
def test_no_such_node_type(node_type):
    batch = subgraph()
    out = np.empty(2, np.int64)
    for call in (
        lambda: batch.add_seeds(node_type, TWO),
        lambda: batch.frontier(node_type),
        lambda: batch.members(node_type),
        lambda: batch.keys(node_type),
        lambda: batch.nodes_per_hop(node_type),
        lambda: batch.write_nodes(node_type, out),
        lambda: batch.write_trees(node_type, out),
    ):
        with pytest.raises(IndexError, match="no such node type"):
            call()


def test_lists_by_edge_type():
    """A graph and options for each of two edge types, as many hops for each."""
    graph = ring(weights=True)
    one, two = ([hop_calls.options(1)] * count for count in (1, 2))
    good = {"graphs": [graph] * 2, "hops": [one, one]}

    def sample(**changed):
        arguments = {**good, **changed}
        subgraph(relations=2).sample(arguments["graphs"], arguments["hops"], 1, 1)

    sample()
    for changed in ({"graphs": [graph]}, {"graphs": [graph] * 3}, {"graphs": []}, {"hops": [one]}):
        with pytest.raises(ValueError, match="a graph and the options of all hops for each"):
            sample(**changed)
    with pytest.raises(ValueError, match="differ in the number of hops"):
        sample(hops=[one, two])
    with pytest.raises(ValueError, match="differ in the sampling method of a hop"):
        sample(hops=[one, [_native.HopOptions(1, method="labor")]])
    with pytest.raises(TypeError, match="must hold a Csr for each"):
        sample(graphs=[graph, None])
    for changed in ({"graphs": [graph, 3]}, {"hops": [one, [1]]}, {"hops": [1, 1]}):
        with pytest.raises(TypeError):
            sample(**changed)
    for graphs in ([], [graph], [graph] * 3):
        with pytest.raises(ValueError, match="a graph for each edge type"):
            subgraph(relations=2).induce(graphs)
    with pytest.raises(TypeError, match="must hold a Csr for each"):
        subgraph(relations=2).induce([None, graph])


def test_methods_without_their_weights_or_times_are_refused():
    """Draws by weight need weights, the latest neighbours times; a weight helps none of them."""
    for call in (
        lambda graph, *options: hop_calls.sample_rows(graph, TWO, 1, False, 1, True, *options),
        lambda graph, *options: hop_calls.hop(subgraph(), 0, graph, 1, False, 1, *options),
        lambda graph, weighted, last=False: hop_calls.sample(
            subgraph(), [graph], [[1]], False, [weighted], last, 1, 1
        ),
    ):
        with pytest.raises(ValueError, match="weighted draws need a graph with weights"):
            call(ring(times=True), True)
        call(ring(weights=True), True)
    with pytest.raises(ValueError, match="the latest neighbours needs a graph with times"):
        hop_calls.sample_rows(ring(weights=True), TWO, 1, False, 1, True, False, True)
    with pytest.raises(ValueError, match="the latest neighbours needs a graph with times"):
        hop_calls.hop(subgraph(), 0, ring(), 1, False, 1, False, True)
    # Over all edge types in one call, those without times are drawn as ever.
    hop_calls.sample(subgraph(), [ring()], [[1]], False, [False], True, 1, 1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("excluded", [None, (ONE, np.array([3]))])
def test_fanouts_beyond_32_bits(weighted, excluded):
    """With replacement an error; without, the row's degree is the limit."""
    graph = ring(weights=True)
    for fanout in (2**31, 2**61, 2**63 - 1):
        arguments = (graph, TWO, fanout)
        options = (1, True, weighted, False, None, None, excluded)
        with pytest.raises(ValueError, match=f"a fan-out of {fanout} with replacement"):
            hop_calls.sample_rows(*arguments, True, *options)
        counts, _, _ = hop_calls.sample_rows(*arguments, False, *options)
        assert counts.tolist() == [2, 2]
        with pytest.raises(ValueError, match=f"a fan-out of {fanout} with replacement"):
            hop_calls.sample(subgraph(), [graph], [[fanout]], True, [weighted], False, 1, 1)
    for fanout in (2**63, 1.0, None):
        with pytest.raises(TypeError):
            hop_calls.sample_rows(graph, TWO, fanout, False, *options)


def test_times_of_seeds():
    batch = subgraph(disjoint=True, times=TWO)
    for wrong in (np.zeros(2, np.int32), np.zeros(2), np.zeros((2, 1), np.int64)):
        with pytest.raises(TypeError):
            batch.add_seeds(0, TWO, wrong)
    with pytest.raises(ValueError, match="times must hold 2 entries, but holds 1"):
        batch.add_seeds(0, TWO, ONE)
    with pytest.raises(ValueError, match="either all seeds of a batch have times, or none"):
        batch.add_seeds(0, TWO)
    with pytest.raises(ValueError, match="either all seeds of a batch have times, or none"):
        subgraph(disjoint=True).add_seeds(0, ONE, ONE)
    with pytest.raises(ValueError, match="seeds with times need a disjoint batch"):
        subgraph(times=TWO)
    # Without seeds there is nothing to agree on.
    for first, second in ((None, ONE), (np.empty(0, np.int64), None)):
        batch = subgraph(disjoint=True, seeds=np.empty(0, np.int64), times=first)
        batch.add_seeds(0, ONE, second)
        ids, trees, times = batch.frontier(0)
        assert (ids.tolist(), trees.tolist()) == ([0], [0])
        assert times is None if second is None else times.tolist() == [0]


def test_rows_and_what_comes_with_them():
    """Trees and times of each row; rows and neighbours of what is excluded."""
    draw = (ring(), TWO, 1, False, 1, True, False, False)
    find = (ring(), TWO, TWO, 4, True, True)
    for call, arguments in ((hop_calls.sample_rows, draw), (_native.induce_rows, find)):
        call(*arguments, np.array([0, 5], np.int32), TWO, (TWO, TWO))
        with pytest.raises(ValueError, match="trees must hold 2 entries, but holds 1"):
            call(*arguments, np.zeros(1, np.int32))
        with pytest.raises(ValueError, match="times must hold 2 entries, but holds 1"):
            call(*arguments, None, ONE)
        with pytest.raises(ValueError, match="excluded neighbours must hold 2 entries"):
            call(*arguments, None, None, (TWO, ONE))
        # Nothing is converted: of a float id 0.7 would become node 0.
        for wrong in (np.array([0.7, 1.0]), np.zeros(2, np.uint32)):
            with pytest.raises(TypeError):
                call(*arguments, wrong)
            with pytest.raises(TypeError):
                call(*arguments, None, wrong)
            for pair in ((wrong, TWO), (TWO, wrong), (TWO,), (TWO, TWO, TWO), TWO):
                with pytest.raises(TypeError):
                    call(*arguments, None, None, pair)
    with pytest.raises(ValueError, match="neighbors must hold 2 entries, but holds 1"):
        subgraph().exclude(0, TWO, ONE)
    for wrong in (np.zeros(2), np.zeros(2, np.int32)):
        with pytest.raises(TypeError):
            subgraph().exclude(0, TWO, wrong)
        with pytest.raises(TypeError):
            _native.induce_rows(ring(), TWO, wrong, 4, True)


@pytest.mark.parametrize("tree", [-1, 2**31 - 1])
def test_trees_of_members(tree):
    """2^62 nodes leave room for the numbers of one tree beside a node's."""
    trees = np.array([0, tree], np.int32)
    with pytest.raises(ValueError, match=f"there is no tree {tree} in a batch of at most 1"):
        _native.induce_rows(ring(), TWO, TWO, 2**62, True, True, trees)
    with pytest.raises(ValueError, match=f"there is no tree {tree}"):
        _native.induce_rows(ring(), TWO, TWO, 4, True, False, trees)


@pytest.mark.parametrize("node", [4, 2**40, 2**63 - 1, -1, -(2**40), -(2**63)])
def test_seeds_of_a_disjoint_batch_that_do_not_exist(node):
    """A tree and an id share a word: an id that is too large would name another tree."""
    batch = subgraph(disjoint=True, times=TWO)
    with pytest.raises(IndexError, match=f"node {node} does not exist: its type has 4 nodes"):
        batch.add_seeds(0, np.array([1, node]), TWO)
    batch.add_seeds(0, ONE, ONE)  # and nothing was added
    assert batch.frontier(0)[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("node", [2, 2**31 - 1, 2**45, -1, -(2**63)])
def test_columns_that_do_not_exist(node):
    """Files may name any neighbour: in a disjoint batch an error, induced it is not found."""
    width = np.int32 if -(2**31) <= node < 2**31 else np.int64
    graph = _native.Csr(np.array([0, 1, 2]), np.array([node, 1], width), times=np.array([1, 1]))
    batch = subgraph(disjoint=True, num_nodes=2, times=TWO + 5)
    with pytest.raises(IndexError, match=f"node {node} does not exist: its type has 2 nodes"):
        hop_calls.sample(batch, [graph], [[1, 1]], False, [False], False, 1, 1)
    batch = subgraph(disjoint=True, num_nodes=2, times=TWO + 5)
    reply = np.array([1, 0], np.int32), np.array([node], width), np.array([0])
    with pytest.raises(IndexError, match=f"node {node} does not exist"):
        batch.merge(0, np.zeros(2, np.int32), [reply])
    batch.induce([graph])
    assert read(batch) == [[0, 1], [1], [1], [1]]


@pytest.mark.parametrize("num_nodes", [2**40, 2**62, 2**63 - 1])
def test_a_batch_whose_trees_do_not_fit(num_nodes):
    """Trees and ids share 63 bits: 2^40 nodes leave 2^23 - 1 trees, 2^62 one, more none at all."""
    room = {2**40: 2**23 - 1, 2**62: 1, 2**63 - 1: 0}[num_nodes]
    seeds = np.full(room + 1, num_nodes - 1)
    for first in (0, room):
        batch = subgraph(disjoint=True, num_nodes=num_nodes, seeds=seeds[:first])
        message = f"a disjoint batch of {room + 1} seeds is too large for this graph"
        with pytest.raises(ValueError, match=message):
            batch.add_seeds(0, seeds[first:])
        assert batch.num_nodes(0) == first
    # Where trees are not told apart there is room for all.
    assert subgraph(num_nodes=num_nodes, seeds=seeds).num_nodes(0) == room + 1


def test_a_graph_that_leads_beyond_64_bits():
    for options in ({"first_row": 2**63 - 4}, {"first_edge": 2**63 - 8}):
        with pytest.raises(ValueError, match=r"lead beyond 2\^63 - 1"):
            ring(**options)
    graph = ring(first_row=2**63 - 5, first_edge=2**63 - 9)
    _, _, edges = hop_calls.sample_rows(graph, np.array([2**63 - 2]), -1, False, 1, True)
    assert edges.tolist() == [2**63 - 3, 2**63 - 2]
    for node in (-(2**63), -1, 2**63 - 6, 2**63 - 1):
        with pytest.raises(IndexError, match=f"node {node} is not one of the graph's rows"):
            hop_calls.sample_rows(graph, np.array([node]), -1, False, 1, True)


@pytest.mark.parametrize("merge", ["merge", "merge_induced"])
@pytest.mark.parametrize(
    ("owners", "counts", "neighbors", "edges"),
    [
        ([1, 0], [1, 1], [0, 1], [0, 1]),  # an owner that sent nothing
        ([-1, 0], [1, 1], [0, 1], [0, 1]),
        ([0, 0], [1], [0], [0]),  # too few rows
        ([0, 0], [1, 1, 1], [0, 1, 0], [0, 1, 2]),  # too many
        ([0, 0], [1, 2], [0, 1], [0, 1]),  # counts beyond the neighbours
        ([0, 0], [-1, 3], [0, 1], [0, 1]),
        ([0, 0], [1, 1], [0, 1, 1], [0, 1, 2]),  # neighbours beyond the counts
        ([0, 0], [1, 1], [0, 1], [0]),  # an edge is missing
        ([0, 0], [1, 1], [0, 1], None),
        ([0], [1], [0], [0]),  # owners of another frontier
    ],
)
def test_replies_that_do_not_fit(merge, owners, counts, neighbors, edges):
    """What came over a network is refused, and the batch can go on without it."""
    batch = subgraph()
    wrong = np.array(counts, np.int32), np.array(neighbors, np.int32), None
    if edges is not None:
        wrong = (*wrong[:2], np.array(edges))
    with pytest.raises(ValueError):
        getattr(batch, merge)(0, np.array(owners, np.int32), [wrong])
    right = np.array([1, 1], np.int32), np.array([1, 0], np.int32), np.array([5, 6])
    getattr(batch, merge)(0, np.zeros(2, np.int32), [right])
    assert read(batch) == [[0, 1], [1, 0], [0, 1], [5, 6]]


def test_members_that_are_not_there():
    for number in (2, -1, 2**31 - 1):
        reply = np.array([1, 0], np.int32), np.array([number], np.int32), np.array([0])
        with pytest.raises(ValueError, match="names a node that is not in the batch"):
            subgraph().merge_induced(0, np.zeros(2, np.int32), [reply])
    reply = np.array([1, 0], np.int32), np.array([1]), np.array([0])
    with pytest.raises(TypeError, match="must be a vector of int32"):
        subgraph().merge_induced(0, np.zeros(2, np.int32), [reply])


def test_a_failed_hop_leaves_no_trace():
    """The second seed's row is missing: after the error another graph can be drawn from."""
    short = _native.Csr(np.array([0, 2]), np.array([2, 3]))
    for draw in (
        lambda batch: hop_calls.hop(batch, 0, short, -1, False, 1),
        lambda batch: hop_calls.sample(batch, [short], [[-1]], False, [False], False, 1, 1),
    ):
        batch = subgraph()
        for _ in range(3):
            with pytest.raises(IndexError, match="node 1 is not one of the graph's rows 0 to 0"):
                draw(batch)
        assert (batch.num_edges(0), batch.edges_per_hop(0)) == (0, [])
        hop_calls.hop(batch, 0, ring(), 1, False, 1)
        node, row, col, edge = read(batch)
        assert col == [0, 1]
        assert [node[r] for r in row] == [[1, 2, 2, 3][e] for e in edge]


def test_reverses():
    """a -> b and b -> a reverse each other; neither reverses itself, nor do numbers stay."""
    batch = _native.Subgraph([2, 2], [(0, 1), (1, 0), (0, 0)], True)
    batch.begin()
    for reversal in ((0, 0, False), (0, 2, False), (2, 1, True)):
        with pytest.raises(ValueError, match=r"edge type \d does not lead back where edge type"):
            batch.add_reverses([reversal], False)
    with pytest.raises(ValueError, match="only edges of one type keep their numbers"):
        batch.add_reverses([(0, 1, False)], True)
    batch.add_reverses([(0, 1, True), (2, 2, False)], False)
    for wrong in ([(0, 1)], [(0, 1, 2, 3)], [None], [(0, 2**31, False)], [(0.5, 1, True)]):
        with pytest.raises(TypeError):
            batch.add_reverses(wrong, False)

    batch = subgraph()
    hop_calls.hop(batch, 0, ring(), -1, False, 1)
    batch.add_reverses([(0, 0, False)], False)
    with pytest.raises(ValueError, match="edges have lost their numbers"):
        batch.add_reverses([(0, 0, False)], True)


def test_buffers_to_be_filled():
    batch = subgraph(disjoint=True)
    hop_calls.hop(batch, 0, ring(), 1, False, 1)
    for write in (batch.write_nodes, batch.write_trees):
        with pytest.raises(ValueError, match="out must hold 4 entries, but holds 3"):
            write(0, np.empty(3, np.int64))
        for wrong in (np.empty(4, np.int32), np.empty(8, np.int64)[::2]):
            with pytest.raises(TypeError):
                write(0, wrong)
    for sizes, name in (((1, 2), "row"), ((2, 3), "col")):
        with pytest.raises(ValueError, match=f"{name} must hold 2 entries"):
            batch.write_edge_index(0, *(np.empty(n, np.int64) for n in sizes))
    with pytest.raises(ValueError, match="out must hold 2 entries, but holds 0"):
        batch.write_edges(0, np.empty(0, np.int64))
    frozen = np.empty(2, np.int64)
    frozen.setflags(write=False)
    with pytest.raises(TypeError):
        batch.write_edges(0, frozen)
    plain = _native.Subgraph([1], [(0, 0)], False)
    with pytest.raises(ValueError, match="with_edges is False"):
        plain.write_edges(0, np.empty(0, np.int64))
