"""Programs: methods that ask the graph themselves, in memory."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from khop import _native, codec
from khop.errors import ProtocolError
from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.sampler.methods import MethodSpec, ProgramMethod, register
from khop.sampler.methods.access import together
from khop.sampler.spec import SamplingSpec
from support.cluster import twins
from support.programs import OneHop, Smallest, smallest, word_of
from support.reference import oracle

SEEDS = torch.tensor([3, 77, 12, 149])
EDGE = ("node", "to", "node")


def test_a_batch_is_what_the_program_draws():
    data = twins.homogeneous()
    loader = NeighborLoader(data, Smallest(3, 2), SEEDS, batch_size=2, seed=5)
    for number, batch in enumerate(loader):
        seeds = SEEDS[2 * number : 2 * number + 2]
        run_key = oracle.run_key(5, 0, 0)
        nodes, layers = smallest(data.edge_index, seeds, 3, 2, run_key, number)
        assert batch.n_id.tolist() == nodes
        assert batch.num_sampled_edges == [len(layer) for layer in layers]
        drawn = [edge for layer in layers for edge in layer]
        assert batch.e_id.tolist() == [e for _, _, e in drawn]
        assert batch.n_id[batch.edge_index].T.tolist() == [[u, v] for u, v, _ in drawn]
        assert batch.edge_attr.view(-1).tolist() == batch.e_id.tolist()
        degrees = torch.bincount(data.edge_index[1], minlength=150)
        norms = [degrees[v] / min(3, int(degrees[v])) for _, v, _ in drawn]
        assert torch.equal(batch.edge_norm, torch.tensor(norms))
        assert torch.equal(batch.node_norm, torch.arange(len(nodes)).float())


def test_values_of_types_and_of_links():
    data = twins.heterogeneous()
    loader = NeighborLoader(data, Smallest(2, 1), ("paper", SEEDS[:2]), batch_size=2)
    batch = next(iter(loader))
    for edge_type in data.edge_types:
        assert len(batch[edge_type].edge_norm) == batch[edge_type].edge_index.size(1)
    assert len(batch["paper"].node_norm) == batch["paper"].n_id.numel()
    links = LinkNeighborLoader(
        twins.homogeneous(),
        Smallest(2, 1),
        edge_label_index=torch.tensor([[1, 2], [3, 4]]),
        neg_sampling="binary",
        batch_size=2,
    )
    batch = next(iter(links))
    assert len(batch.edge_norm) == batch.edge_index.size(1)
    assert batch.edge_label_index.max() < batch.n_id.numel()


def test_induced_subgraphs_of_what_a_program_takes():
    data = twins.homogeneous()
    (batch,) = NeighborLoader(data, OneHop(), SEEDS, batch_size=4, seed=1)
    twin = NeighborLoader(data, [], batch.n_id, subgraph_type="induced", batch_size=len(batch.n_id))
    (induced,) = twin
    assert len(batch.n_id) > 4
    for name in ("n_id", "edge_index", "e_id", "edge_attr"):
        assert torch.equal(batch[name], induced[name])
    with pytest.raises(ValueError, match=r"makes 'induced' subgraphs .* leave it out"):
        NeighborLoader(data, OneHop(), SEEDS, subgraph_type="bidirectional")
    with pytest.raises(ValueError, match=r"makes 'directional' subgraphs .* leave it out"):
        NeighborLoader(data, Smallest(3), SEEDS, subgraph_type="induced")


def test_a_program_travels_by_its_fields():
    spec = SamplingSpec.create(Smallest(3, 2), [EDGE])
    sent = codec.to_json(spec)
    assert sent["method"] == {
        "name": "test-smallest",
        "layer_dependency": False,
        "program": {"fanout": 3, "hops": 2},
        "layer_wise": True,
    }
    assert codec.from_json(SamplingSpec, sent, "a spec") == spec
    for program in (None, {"fanout": 3, "depth": 1}, {"fanout": 0}, {"fanout": "3"}, [3]):
        changed = {**sent, "method": {**sent["method"], "program": program}}
        with pytest.raises(ProtocolError, match=r"fanout|depth|object"):
            codec.from_json(SamplingSpec, changed, "a spec")
    with pytest.raises(ValueError, match="no program"):
        MethodSpec("neighbor", program={"fanout": 3})


@pytest.mark.parametrize("option", [{"replace": True}, {"weight_attr": "edge_weight"}])
def test_options_that_a_program_does_not_know(option):
    name = next(iter(option))
    with pytest.raises(ValueError, match=f"Smallest has no {name}"):
        NeighborLoader(twins.homogeneous(), Smallest(3), SEEDS, **option)


@pytest.mark.parametrize("option", [{"disjoint": True}, {"time_attr": "time"}])
def test_trees_and_times_are_refused_by_programs_that_do_not_know_them(option):
    with pytest.raises(
        ValueError, match="Smallest makes no disjoint batches, and so knows no times"
    ):
        NeighborLoader(twins.homogeneous(), Smallest(3), SEEDS, **option)


def test_a_program_must_be_a_dataclass():
    with pytest.raises(TypeError, match="no dataclass"):
        register(type("Bare", (ProgramMethod,), {"name": "bare"}))


def test_degrees():
    indptr, indices = np.array([0, 2, 2, 5], np.int64), np.zeros(5, np.int32)
    csr = _native.Csr(indptr, indices, first_row=10)
    assert _native.degrees(csr, np.array([12, 10, 11, 12])).tolist() == [3, 2, 0, 3]
    for wrong in (9, 13, -(2**63)):
        with pytest.raises(IndexError, match="not one of the graph's rows 10 to 12"):
            _native.degrees(csr, np.array([10, wrong]))


def test_words():
    ids = np.array([0, 5, 2**40, -1])
    words = _native.draw_words(9, ids).tolist()
    for node, word in zip(ids.tolist(), words, strict=True):
        assert word == word_of(9, node)


def test_steps_side_by_side():
    """What steps wait for is waited for together; each returns in its place."""

    def step(name, waits):
        for wait in range(waits):
            yield [f"{name}{wait}"]
        return name

    def outer():
        return (yield from together(step(*each) for each in (("a", 2), ("b", 0), ("c", 1))))

    running, waited = outer(), []
    with pytest.raises(StopIteration) as stop:
        while True:
            waited.append(next(running))
    assert waited == [["a0", "c0"], ["a1"]]
    assert stop.value.value == ["a", "b", "c"]


@register
@dataclass(frozen=True)
class Misnamed(Smallest):
    """Delivers something else than its class names."""

    name: ClassVar[str] = "test-misnamed"

    def draw(self, graph: Any) -> Generator[list[Any], None, None]:
        yield from super().draw(graph)
        norms = graph.values["e0.edge_norm"]
        if self.hops == 1:
            graph.values["e0.other"] = norms
        elif self.hops == 2:
            del graph.values["n0.node_norm"]
        else:
            graph.values["e0.edge_norm"] = norms[1:] if self.fanout == 1 else norms.astype(float)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((1, 1), r"Misnamed delivers .*'e0.other'.* these are \['e0.edge_norm', 'n0.node_norm'\]"),
        ((1, 2), r"Misnamed delivers \['e0.edge_norm'\], but .*'n0.node_norm'"),
        ((1, 3), r"must deliver 'e0.edge_norm' as float32 of shape .*\(got float32 of shape"),
        ((2, 3), r"must deliver 'e0.edge_norm' as float32 of shape .*\(got float64 of shape"),
    ],
)
def test_values_are_those_that_the_class_names(options, message):
    """So that none is there in memory and lost over partitions."""
    loader = NeighborLoader(twins.homogeneous(), Misnamed(*options), SEEDS, batch_size=4)
    with pytest.raises(ValueError, match=message):
        next(iter(loader))
