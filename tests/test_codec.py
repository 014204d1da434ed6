"""Dataclasses as JSON: what is written is read as it was, and nothing else is read."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import pytest

from khop import codec
from khop.codec import AtMost, Between, Distinct
from khop.errors import ProtocolError


class Pair(NamedTuple):
    """Two of a kind."""

    left: int
    right: str


@dataclass(frozen=True)
class Inner:
    """A part."""

    ratio: Annotated[float, Between(0, 1)]
    mode: Literal["a", "b"] | None = None

    def __post_init__(self):
        if self.mode == "b" and self.ratio == 0:
            raise ValueError("mode 'b' needs a ratio")


@dataclass(frozen=True)
class Outer:
    """A whole."""

    name: Annotated[str, AtMost(5)]
    counts: Annotated[list[Annotated[int, Between(0, 9)]], AtMost(3), Distinct()]
    hops: tuple[tuple[int, ...], ...] = ()
    triple: tuple[int, bool, str] = (1, True, "x")
    parts: dict[int, Inner] = field(default_factory=dict)
    pair: Pair = field(default_factory=lambda: Pair(1, "r"))
    flag: bool = False
    note: str | None = None
    anything: Any = None


WHOLE = Outer(
    "name", [3, 1], ((1,), ()), (2, False, "y"), {-4: Inner(0.5, "b"), 7: Inner(0)},
    Pair(3, "s"), True, "n", {"deep": [1, None]},
)  # fmt: skip


def text_of(value):
    """As it travels."""
    return json.loads(json.dumps(codec.to_json(value)))


def test_round_trip():
    for value in (WHOLE, Outer("n", [])):
        assert codec.from_json(Outer, text_of(value), "it") == value


@pytest.mark.parametrize(
    "change,words",
    [
        ({"name": "longer"}, "it: name must be a text of at most 5 characters (got 6 characters)"),
        ({"name": 5}, "name must be a text"),
        ({"counts": [10]}, "counts[0] must be an integer from 0 to 9 (got 10)"),
        ({"counts": [1, True]}, "counts[1] must be an integer"),
        ({"counts": [1, 1]}, "counts names something twice"),
        ({"counts": [1, 2, 3, 4]}, "counts must be a list of at most 3 entries (got a list of 4)"),
        ({"counts": {"0": 1}}, "counts must be a list"),
        ({"hops": [[1], [2**70]]}, "hops[1][0] must be an integer"),
        ({"triple": [1, True]}, "triple must be a list of 3 entries"),
        ({"triple": [1, 1, "x"]}, "triple[1] must be true or false (got 1)"),
        ({"parts": {"x": {"ratio": 1}}}, "parts must have integers as keys (got 'x')"),
        ({"parts": {"٣": {"ratio": 1}}}, "parts must have integers as keys"),
        ({"parts": {"1": {"ratio": 1}, "01": {"ratio": 1}}}, "parts names '01' twice"),
        ({"parts": {"1": {"ratio": 2}}}, "parts['1'].ratio must be a finite number from 0 to 1"),
        ({"parts": {"1": {"ratio": float("nan")}}}, "must be a finite number"),
        ({"parts": {"1": {"ratio": 10**400}}}, "must be a finite number"),
        ({"parts": {"1": {"ratio": 1, "mode": "c"}}}, "mode must be one of ['a', 'b'] (got 'c')"),
        ({"parts": {"1": {"ratio": 0, "mode": "b"}}}, "parts['1'] mode 'b' needs a ratio"),
        ({"parts": {"1": {}}}, "parts['1'] lacks ['ratio']"),
        ({"pair": [1]}, "pair must be a list of 2 entries"),
        ({"flag": None}, "flag must be true or false"),
        ({"other": 1}, "has an unknown field 'other'"),
        ({"note": "\x1b[2J" * 5000}, "note must be a text of at most 4096 characters"),
        ({"\x1b[2J": 1}, r"unknown field '\x1b[2J'"),
    ],
)
def test_refused(change, words):
    """The field is named, and what was received; nothing that was sent is repeated at length."""
    with pytest.raises(ProtocolError) as caught:
        codec.from_json(Outer, {**text_of(WHOLE), **change}, "it")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("content", [None, [], "x", 5, {}, {"name": "n"}])
def test_no_object(content):
    with pytest.raises(ProtocolError, match=r"must be an object|lacks"):
        codec.from_json(Outer, content, "it")


def test_class_without_a_schema_is_refused():
    """What cannot be checked is a mistake of ours, found at the first use."""

    @dataclass(frozen=True)
    class Odd:
        value: set

    with pytest.raises(TypeError, match="no schema"):
        codec.from_json(Odd, {"value": []}, "it")
    with pytest.raises(TypeError, match="does not travel"):
        codec.to_json(Odd({1}))
