"""Types of arguments that several commands have."""

from __future__ import annotations

import argparse


def fanouts(text: str) -> list[int]:
    """Parse fan-outs with commas between."""
    try:
        found = [int(k) for k in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < -1:
        raise argparse.ArgumentTypeError(
            f"must be integers of -1 or more with commas between, such as 15,10,5 (got '{text}')"
        )
    return found
