"""Engines that partition on many machines, by name. Imports no torch."""

from __future__ import annotations

import importlib.util

ENGINES = ("ray",)


def check_engine(on: str | None) -> None:
    """Check the name of an engine; None is this machine.

    Raises:
        ValueError: there is no such engine.
        ModuleNotFoundError: it is not installed.
    """
    if on is None:
        return
    if on not in ENGINES:
        raise ValueError(f"on must be 'ray', or None for this machine (got {on!r})")
    if importlib.util.find_spec(on) is None:
        raise ModuleNotFoundError(
            f"on='{on}' (--on {on}) needs package {on}: pip install {on}", name=on
        )
