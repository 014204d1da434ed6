"""Random batches for devices: what kinds there are, and that a difference is seen."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from khop import _native
from khop.sampler.methods import MethodSpec
from khop_bench.device_equality import _contents_on_host, compare, configuration
from khop_bench.on_device import Place, open_place
from support.devices import TORCH_KINDS, open_device

NUMBERS = range(200)


def drawn(about):
    subgraph = about.draw(_native.Subgraph(*about.arguments()), about.csrs)
    return list(_contents_on_host(subgraph, about))


def is_same(a, b):
    return len(a) == len(b) and all(map(np.array_equal, a, b))


def test_every_kind_is_among_them():
    found = [configuration(n) for n in NUMBERS]
    for name in ("replace", "last", "disjoint", "with_edges", "induced"):
        assert {getattr(about, name) for about in found} == {True, False}
    assert {about.method for about in found} == {
        MethodSpec(),
        MethodSpec("labor"),
        MethodSpec("labor", layer_dependency=True),
    }
    assert any(len(about.num_nodes) > 1 for about in found)
    assert any(csr.has_times and csr.has_weights for about in found for csr in about.csrs)
    assert {csr.wide for about in found for csr in about.csrs} == {True, False}
    assert any(any(about.weighted) for about in found)
    assert any(times is not None for about in found for _, _, times in about.seeds)
    assert any(len(rows) for about in found for _, rows, _ in about.excluded)
    assert {len(about.fanouts[0]) for about in found} == {0, 1, 2, 3}
    assert any(-1 in hops for about in found for hops in about.fanouts)


def test_a_number_is_always_the_same_batch_and_keys_make_another():
    """All of the batch is compared: a key that matters is seen by most of the larger ones."""
    changed = 0
    for number in NUMBERS:
        about = configuration(number)
        first = drawn(about)
        assert is_same(first, drawn(configuration(number)))
        other = dataclasses.replace(about, keys=(about.keys[0] + 1, about.keys[1]))
        changed += not is_same(first, drawn(other))
    assert changed > len(NUMBERS) / 4


def test_an_emulated_device_is_a_place_like_a_gpu():
    with open_place("emulated") as place:
        assert place.group("sampling") == "sampling, emulated"
        on_device = place.put(np.arange(5))
        assert np.array_equal(place.get(on_device), np.arange(5))
        assert place.empty((2, 3)).shape == (2, 3)
        assert place.seconds(lambda: None) >= 0


@pytest.mark.parametrize("kind", TORCH_KINDS)
def test_devices_draw_the_same(kind):
    if kind == "cuda":
        with open_place("cuda") as place:
            found = compare(place, 100)
    else:
        with open_place("emulated") as place:
            found = compare(Place(open_device(kind, 7), place.torch_device), 40)
    assert found.different == {}
    assert found.tried == (100 if kind == "cuda" else 40)


def test_device_failure_ends_the_comparison_with_a_report():
    """A place whose device is none: nothing can be drawn, and not all of it is tried."""
    with open_place("emulated") as place:
        found = compare(Place(None, place.torch_device), 1000)
    assert found.tried == len(found.different) < 100
    assert all("TypeError" in why for why in found.different.values())
