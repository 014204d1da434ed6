"""Which links a batch holds, with which negatives, and which edges it leaves out."""

import json
import subprocess
import sys

import pytest

from khop import codec
from khop.sampler.drawing.link import LinkSampler
from khop.sampler.link_spec import LinkSpec, excluded_relations

TYPES = [("u", "buys", "i"), ("i", "rev_buys", "u"), ("u", "knows", "u"), ("i", "like", "i")]


@pytest.mark.parametrize(
    ("exclude", "link_type", "expected"),
    [
        (False, TYPES[0], ()),
        (True, TYPES[0], ((0, False),)),
        ("self", TYPES[1], ((1, False),)),
        ("reverse", TYPES[0], ((0, False), (1, True))),
        ("reverse", TYPES[1], ((1, False), (0, True))),
        ("reverse", TYPES[2], ((2, False), (2, True))),
        (TYPES[1], TYPES[0], ((0, False), (1, True))),
        (list(TYPES[2]), TYPES[2], ((2, False), (2, True))),
    ],
)
def test_seed_edges_are_excluded_by_type(exclude, link_type, expected):
    assert excluded_relations(exclude, TYPES, link_type) == expected


def test_reverses_without_a_name():
    """The only type back is the reverse; where there are several, the user says which."""
    types = [("a", "r", "b"), ("b", "s", "a")]
    assert excluded_relations("reverse", types, types[0]) == ((0, False), (1, True))
    types.append(("b", "t", "a"))
    with pytest.raises(ValueError, match=r"any of .*'s'.*'t'.* could reverse"):
        excluded_relations("reverse", types, types[0])
    assert excluded_relations(types[2], types, types[0]) == ((0, False), (2, True))
    with pytest.raises(ValueError, match="no edge type reverses"):
        excluded_relations("reverse", types[:1], types[0])


@pytest.mark.parametrize(
    ("exclude", "link_type", "message"),
    [
        ("both", TYPES[0], "exclude_seed_edges must be False, 'self'"),
        (("u", "x", "i"), TYPES[0], "exclude_seed_edges must be"),
        (TYPES[2], TYPES[0], "do not reverse links"),
        (True, ("u", "x", "u"), "no edges of the graph"),
    ],
)
def test_bad_exclusions(exclude, link_type, message):
    with pytest.raises(ValueError, match=message):
        excluded_relations(exclude, TYPES, link_type)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"link_type": ("u", "x", "z")}, "type 'z'"),
        ({"mode": "ternary"}, "'binary' or 'triplet'"),
        ({"mode": "binary", "amount": 0}, "must be positive"),
        ({"mode": "binary", "amount": float("nan")}, "must be positive"),
        ({"mode": "binary", "amount": float("inf")}, r"below 2\^31 \(got inf\)"),
        ({"mode": "triplet", "amount": 2**31}, r"below 2\^31 \(got 2147483648\)"),
        ({"mode": "triplet", "amount": 1.5}, "must be whole"),
        ({"strict": True}, "need negatives"),
        ({"strict": True, "mode": "binary", "link_type": ("u", "x", "u")}, "no edges of type"),
    ],
)
def test_bad_specs(options, message):
    with pytest.raises(ValueError, match=message):
        LinkSpec.create(["u", "i"], TYPES, **{"link_type": TYPES[0], **options})
    with pytest.raises(ValueError, match="need a sampler of negatives"):
        LinkSampler(LinkSpec(mode="binary"))


def test_specs_travel_as_json():
    spec = LinkSpec.create(
        ["u", "i"],
        TYPES,
        TYPES[0],
        edge_dir="out",
        disjoint=True,
        mode="triplet",
        amount=3,
        strict=True,
        exclude="reverse",
    )
    assert codec.from_json(LinkSpec, json.loads(json.dumps(codec.to_json(spec))), "it") == spec
    hash(spec)


@pytest.mark.process
def test_samplers_need_no_torch():
    """Sampler processes import the link modules; torch is not to be had there."""
    code = (
        "import sys; sys.modules['torch'] = None; "
        "import khop.sampler.drawing.link, khop.sampler.drawing.negative"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
