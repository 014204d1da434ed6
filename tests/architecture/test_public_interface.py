"""The public interface is the recorded one; a change of it is made on purpose."""

from __future__ import annotations

import difflib

from support.interface import FILE, interface


def test_interface_is_recorded() -> None:
    recorded = FILE.read_text().splitlines()
    change = [
        line
        for line in difflib.unified_diff(recorded, interface(), "recorded", "now", lineterm="", n=0)
        if not line.startswith("@@")
    ]
    assert change == [], "run `python tests/support/interface.py --write` if this is meant"
