"""Options of distributed loaders: one table for signatures, documentation and checks."""

import inspect
import warnings
from typing import Annotated

import pytest
import torch

from khop.distributed import (
    DistClusterLoader,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    InducedOptions,
    LoaderOptions,
)
from khop.options import Option, options_of, resolved, takes_options
from support.cluster import twins

POSITIONAL = {
    DistNeighborLoader: ["data", "num_neighbors", "input_nodes"],
    DistSubGraphLoader: ["data", "input_nodes", "num_neighbors"],
    DistLinkNeighborLoader: ["data", "num_neighbors", "edge_label_index"],
    DistClusterLoader: ["data", "clusters"],
}
SEEDS = torch.arange(0, 60, 3)


@pytest.fixture(scope="module")
def dataset(twin_root):
    with twins.open_dataset(twin_root("homogeneous", 2), 2) as opened:
        yield opened


@pytest.mark.parametrize("loader", POSITIONAL)
def test_signatures(loader):
    """All options are keyword-only, with their defaults; the documentation has them, too."""
    parameters = inspect.signature(loader).parameters
    positional = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == POSITIONAL[loader]
    kind = InducedOptions if loader is DistClusterLoader else LoaderOptions
    for name, option in options_of(kind).items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == option.default
        assert f"\n        {name}: " in loader.__doc__
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_an_option_is_declared_once():
    """Whoever adds one changes no loader: signature, documentation, default and check follow."""

    class More(LoaderOptions, total=False):
        lookahead: Annotated[int, Option(4, "batches that are planned in advance.")]

    @takes_options(More)
    class DistNeighborLoader:
        """A loader.

        Args:
            data: a graph.
        **options: `More`.
        """

        def __init__(self, data, **options):
            self.options = resolved(More, self, options)

    assert inspect.signature(DistNeighborLoader).parameters["lookahead"].default == 4
    assert "lookahead: batches that are planned in advance." in DistNeighborLoader.__doc__
    assert DistNeighborLoader(None).options["lookahead"] == 4
    assert DistNeighborLoader(None, lookahead=7).options["lookahead"] == 7
    with pytest.raises(TypeError, match="no option 'lookahaed': did you mean 'lookahead'"):
        DistNeighborLoader(None, lookahaed=7)


def test_unknown_options(dataset):
    with pytest.raises(TypeError, match="DistNeighborLoader has no option 'shufle': did you mean"):
        DistNeighborLoader(dataset, [2], SEEDS, shufle=True)
    with pytest.raises(TypeError, match="DistClusterLoader has no option 'replace'"):
        DistClusterLoader(dataset, assignment=torch.zeros(150, dtype=int), replace=True)
    with pytest.raises(TypeError, match="positional arguments"):
        DistNeighborLoader(dataset, [2], SEEDS, 4)


def test_old_spellings(dataset):
    """They warn once each, at the user's line, and mean the same."""
    expected = list(DistNeighborLoader(dataset, [2], SEEDS, batch_size=7, shuffle=True, seed=3))

    class Own(DistNeighborLoader):
        """A user's subclass."""

    for kind in (DistNeighborLoader, Own):
        old = {"random_seed": 3, "to_device": None, "with_weight": False}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = kind(dataset, [2], SEEDS, batch_size=7, shuffle=True, **old)
        found = [w for w in caught if w.category is DeprecationWarning]
        assert [str(w.message).split(": ")[1] for w in found] == [
            "random_seed= is called seed= now",
            "to_device= is called device= now",
            "with_weight= is called weight_attr= now",
        ]
        assert {w.filename for w in found} == {__file__}
        ids = [batch.n_id.tolist() for batch in loader]
        assert ids == [batch.n_id.tolist() for batch in expected]
    with pytest.raises(TypeError, match="seed=4 contradicts random_seed=3"):
        DistNeighborLoader(dataset, [2], SEEDS, random_seed=3, seed=4)
