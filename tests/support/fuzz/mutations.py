"""Random damage to inputs: bytes, and JSON by its structure. A `random.Random` determines all."""

from __future__ import annotations

import json
from random import Random
from typing import Any

NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 8, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535, 65536),
    *(2**20, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**47, 2**48 - 1, 2**48, 2**53),
    *(2**56, 2**59, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30),
    *(-2, -128, -(2**31), -(2**32), -(2**63), -(2**63) - 1, -(2**64)),
)
_DEEP: Any = []
for _ in range(300):
    _DEEP = [_DEEP]
VALUES = (
    *NUMBERS, None, True, False, "", "x", 0.5, -1.5, 1e308, float("nan"), float("inf"), [], {},
    [[]], [0], [-1], {"a": 1}, "int64", "int32", "bool", "object", "bfloat16", "float16", "in",
    "out", "trees", "times", "excluded", "node", "edge", "../../etc/passwd", "a/b", "\ud800", "\0",
    "é",
    "y" * 3000, [1] * 2000, _DEEP,
)  # fmt: skip
_BYTES = (b"\0", b"\xff", b"\x7f", b"\x80", b"[", b"]", b"{", b"}", b'"', b",", b"-", b"1", b"\\")


def bytes_changed(random: Random, data: bytes, others: list[bytes]) -> bytes:
    """Return data with one to four damages. Pieces of `others` may be inserted."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        size = len(changed)
        at = random.randrange(size) if size else 0
        kind = random.randrange(9)
        if kind == 0 and size:
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 1 and size:
            changed[at] = random.randrange(256)
        elif kind == 2:
            changed[at:at] = random.choice(_BYTES) * random.choice((1, 1, 2, 8, 100))
        elif kind == 3:
            del changed[at : at + random.choice((1, 2, 8, 64))]
        elif kind == 4:
            del changed[at:]
        elif kind == 5:
            changed[at:at] = changed[at : at + random.choice((1, 8, 64))]
        elif kind == 6:  # an integer of 2, 4 or 8 bytes
            width = random.choice((2, 4, 8, 8))
            number = random.choice(NUMBERS) & (1 << 8 * width) - 1
            at -= at % width
            changed[at : at + width] = number.to_bytes(width, "little")
        elif kind == 7:  # a number in text
            changed[at : at + 1] = str(random.choice(NUMBERS)).encode()
        else:
            other = random.choice(others)
            begin = random.randrange(len(other)) if other else 0
            changed[at : at + 16] = other[begin : begin + 64]
    return bytes(changed)


def json_changed(random: Random, content: Any) -> Any:
    """Return a copy of JSON content with one change in it. Unchanged parts are shared."""
    if isinstance(content, dict) and content and random.random() < 0.95:
        key = random.choice(list(content))
        copy = dict(content)
        kind = random.random()
        if kind < 0.8:
            copy[key] = json_changed(random, content[key])
        elif kind < 0.9:
            del copy[key]
        else:
            copy[random.choice(("x", "", key + "_", "arrays", "id"))] = random.choice(VALUES)
        return copy
    if isinstance(content, (list, tuple)) and content and random.random() < 0.95:
        at = random.randrange(len(content))
        copy = list(content)
        kind = random.random()
        if kind < 0.75:
            copy[at] = json_changed(random, content[at])
        elif kind < 0.85:
            del copy[at]
        elif kind < 0.95:
            copy.insert(at, copy[at])
        else:
            copy.append(random.choice(VALUES))
        return copy
    if type(content) is int and random.random() < 0.5:
        return content + random.choice((-8, -1, 1, 8, 1000))
    return random.choice(VALUES)


def text_changed(random: Random, content: Any, others: list[bytes]) -> bytes:
    """Return JSON text whose content, or bytes, or both are damaged."""
    kind = random.random()
    changes = 0 if kind < 0.2 else random.choice((1, 1, 2, 3))
    for _ in range(changes):
        content = json_changed(random, content)
    text = json.dumps(content).encode()
    return bytes_changed(random, text, others) if kind < 0.4 else text
