"""Options of partitioners: one table for signatures, documentation and checks."""

import inspect
from typing import Annotated

import pytest

from khop import glt
from khop.options import Option, options_of, split_options, takes_options
from khop.partition import (
    FrequencyOptions,
    PartitionerBase,
    PartitionOptions,
    RandomPartitioner,
    StreamPartitioner,
    frequency_partition,
    partition_graph,
)

POSITIONAL = {
    PartitionerBase: ["output_dir", "num_parts", "num_nodes", "edge_index"],
    PartitionerBase.from_data: ["data", "output_dir", "num_parts"],
    frequency_partition: ["data", "output_dir", "num_parts", "num_neighbors"],
}
EDGES = [[0, 1, 2, 3], [1, 2, 3, 0]]


@pytest.mark.parametrize("taker", POSITIONAL)
def test_signatures(taker):
    """All options are keyword-only, with their defaults; the documentation has them, too."""
    parameters = inspect.signature(taker).parameters
    positional = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == POSITIONAL[taker]
    kind = FrequencyOptions if taker is frequency_partition else PartitionOptions
    for name, option in options_of(kind).items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == option.default
        assert f" {name}: " in taker.__doc__
    further = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    assert further == (taker is not frequency_partition)  # subclasses have their own


def test_an_option_is_declared_once():
    class More(PartitionOptions, total=False):
        chunks: Annotated[int, Option(4, "arrays that are written at a time.")]

    @takes_options(More, further=True)
    def cut(data, **options):
        """Cut.

        Args:
            data: a graph.
            **options: those of the method.
        """
        return split_options(More, "cut", options)

    assert inspect.signature(cut).parameters["chunks"].default == 4
    assert "            chunks: arrays that are written at a time.\n" in cut.__doc__
    assert "**options: those of the method." in cut.__doc__
    chosen, further = cut(None, slack=0.1)
    assert (chosen["chunks"], further) == (4, {"slack": 0.1})


def test_unknown_options(tmp_path):
    with pytest.raises(TypeError, match=r"StreamPartitioner has no option 'slac'.*mean 'slack'"):
        StreamPartitioner(tmp_path / "f", 2, 4, EDGES, slac=0.1)
    with pytest.raises(TypeError, match=r"RandomPartitioner has no option 'sede'.*mean 'seed'"):
        RandomPartitioner(tmp_path / "f", 2, 4, EDGES, sede=1)
    with pytest.raises(TypeError, match="frequency_partition has no option 'batchsize'"):
        frequency_partition(None, tmp_path / "f", 2, [2], batchsize=1)
    with pytest.raises(TypeError, match="positional arguments"):
        RandomPartitioner(tmp_path / "f", 2, 4, EDGES, None)


def test_the_old_spelling_warns(tmp_path, make_data):
    makes = {
        "RandomPartitioner": lambda **o: RandomPartitioner(tmp_path / "f", 2, 4, EDGES, **o),
        "from_data": lambda **o: RandomPartitioner.from_data(make_data(), tmp_path / "f", 2, **o),
    }
    for make in makes.values():
        with pytest.warns(DeprecationWarning, match="is called edge_dir= now") as caught:
            assert make(edge_assign_strategy="by_src").edge_dir == "out"
        assert [w.filename for w in caught] == [__file__]
        with pytest.raises(TypeError, match=r"edge_dir='in' contradicts edge_ass.*='by_src'"):
            make(edge_assign_strategy="by_src", edge_dir="in")
    with pytest.warns(DeprecationWarning, match="frequency_partition: edge_assign_strategy="):
        meta = frequency_partition(
            make_data(), tmp_path / "g", 2, [2], edge_assign_strategy="by_src"
        )
    assert meta.edge_dir == "out"
    with pytest.raises(TypeError, match="edge_assign_strategy"):
        partition_graph(make_data(), tmp_path / "h", 2, edge_assign_strategy="by_src")


def test_order_of_glt(tmp_path):
    """Its positional arguments, its defaults, and what it takes without need."""
    x = [[1.0], [2.0], [3.0], [4.0]]
    of_random = (tmp_path / "f", 2, 4, EDGES, x, "float16", None, None, None, "by_dst", 10, "cpu")
    made = glt.partition.RandomPartitioner(*of_random)
    assert (made.edge_dir, made.source.nodes["node"].attrs["x"].dtype) == ("in", "float16")
    probs = [[1.0, 1, 0, 0], [0.0, 0, 1, 1]]
    of_frequency = (tmp_path / "f", 2, 4, EDGES, probs, *[None] * 5, "by_src", None, 0.5, 10)
    made = glt.partition.FrequencyPartitioner(*of_frequency)
    assert (made.edge_dir, made.cache_ratio) == ("out", 0.5)
    assert glt.partition.RandomPartitioner(tmp_path / "f", 2, 4, EDGES).edge_dir == "out"
    with pytest.raises(TypeError, match="'num_parts' twice"):
        glt.partition.RandomPartitioner(tmp_path / "f", 2, num_parts=2)
    with pytest.raises(ValueError, match=r"'by_src' or 'by_dst' .got 'by_edge'"):
        glt.partition.RandomPartitioner(*of_random[:9], "by_edge")
    with pytest.raises(TypeError, match="no option 'chunk_size'"):
        RandomPartitioner(tmp_path / "f", 2, 4, EDGES, chunk_size=10)
