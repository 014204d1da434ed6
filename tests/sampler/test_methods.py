"""Methods: their registry, how they travel, and that fingerprints know all of a spec."""

from dataclasses import dataclass, fields, replace

import pytest

from khop import _native, codec
from khop.errors import ProtocolError
from khop.loader.iteration.fingerprint import describe_sampling
from khop.sampler import METHODS, NeighborSampling, SamplingSpec
from khop.sampler.methods import MethodSpec, ProgramMethod, as_method
from khop.sampler.requests import HopRequest

EDGE = ("node", "to", "node")
SIZES = ({"node": 9}, {EDGE: 20})


def test_kernels_know_all_methods():
    for name in METHODS:
        if not issubclass(METHODS[name], ProgramMethod):
            assert _native.HopOptions(3, **MethodSpec(name).kernel_options()).method == name
    with pytest.raises(ValueError, match="no such sampling method 'other'"):
        _native.HopOptions(3, method="other")


def test_a_request_is_the_kernels_options():
    """No field of one is missing in the other, and all arrive with their values."""
    native = {name for name in dir(_native.HopOptions) if not name.startswith("_")} - {"at"}
    own = {field.name for field in fields(HopRequest)} - {"method"}
    assert own | MethodSpec().kernel_options().keys() == native
    for changed in (
        {"fanout": 7},
        {"replace": True},
        {"with_edge": False},
        {"key": 2**64 - 1},
        {"weighted": True},
        {"last": True},
    ):
        plain = HopRequest(3, False, True, 1)
        options = replace(plain, **changed).options()
        for name in own:
            assert getattr(options, name) == changed.get(name, getattr(plain, name))


@pytest.mark.parametrize("field", ["replace", "method"])
def test_a_request_is_read_in_full(field):
    """A field that is unknown or malformed is refused by whoever receives it."""
    sent = codec.to_json(HopRequest(3, False, True, 1))
    assert codec.from_json(HopRequest, sent, "a request") == HopRequest(3, False, True, 1)
    with pytest.raises(ProtocolError, match=field):
        codec.from_json(HopRequest, {**sent, field: 1}, "a request")
    with pytest.raises(ProtocolError, match="no sampling method 'other'"):
        codec.from_json(HopRequest, {**sent, "method": {"name": "other"}}, "a request")
    with pytest.raises(ProtocolError, match="unknown field 'depth'"):
        codec.from_json(HopRequest, {**sent, "depth": 1}, "a request")


def test_a_list_is_uniform_neighbour_sampling():
    method = as_method([15, 10])
    assert method == NeighborSampling([15, 10])
    assert as_method(method) is method
    specs = [SamplingSpec.create(given, [EDGE]) for given in ([15, 10], method)]
    assert specs[0] == specs[1]
    assert specs[0].method.name == "neighbor"
    with pytest.raises(TypeError, match=r"is the class NeighborSampling: pass an object"):
        SamplingSpec.create(NeighborSampling, [EDGE])


@dataclass(frozen=True)
class LaterSpec(SamplingSpec):
    """A spec with an option that nobody has told the fingerprint of."""

    option: int = 0


def test_fingerprints_know_a_field_that_was_added():
    plain = describe_sampling(SamplingSpec(((3,),)), *SIZES)
    later = [describe_sampling(LaterSpec(((3,),), option=k), *SIZES) for k in range(3)]
    assert len({plain, *later}) == 4


def test_fingerprints_differ_by_what_decides_draws():
    spec = SamplingSpec(((3, 2),))
    changes = (
        {"fanouts": ((3, 1),)},
        {"replace": True},
        {"subgraph_type": "induced"},
        {"disjoint": True},
        {"temporal": True},
        {"last": True},
        {"weighted": (True,)},
        {"reversals": ((0, 0, False),)},
    )
    same = ({}, {"with_edge": False}, {"keep_edge": False}, {"weighted": (False,)})
    digests = [describe_sampling(replace(spec, **change), *SIZES) for change in changes]
    plain = {describe_sampling(replace(spec, **change), *SIZES) for change in same}
    assert len(plain) == 1
    assert len({*digests, *plain}) == len(changes) + 1
