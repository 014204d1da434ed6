"""A fault of the device half, as a change of its text."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A change of one file.

    Attributes:
        name: what is wrong.
        file: below kernels/khop.
        old: text that stands there once.
        new: what replaces it. `M` stands for "this fault is active".
        tests: files in tests/kernels, without 'test_' and '.py', that are to find it.
        only: pytest's expression for some tests of them.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str
    only: str = "(fake or boundary or failures or host_memory or streams or caching) and not lost"
