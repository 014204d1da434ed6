"""Engines that partition on many machines, by name. Imports no torch."""

from __future__ import annotations

import importlib.util
import os
import sys

ENGINES = ("ray",)
ADDRESS_VARIABLE = "RAY_ADDRESS"

# What Ray takes for "look for a cluster here", or "start one".
_NO_ADDRESSES = ("auto", "local")


def check_engine(on: str | None) -> None:
    """Check an engine, 'ray' or 'ray:ADDRESS'; None is this machine.

    Raises:
        ValueError: there is no such engine, or nothing names the cluster.
        ModuleNotFoundError: it is not installed.
    """
    if on is None:
        return
    name = engine_of(str(on))
    if name not in ENGINES:
        raise ValueError(f"on must be 'ray', 'ray:ADDRESS', or None for this machine (got {on!r})")
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(
            f"on='{name}' (--on {name}) needs package {name}: pip install {name}", name=name
        )
    ray = sys.modules.get(name)
    if ray is None or not ray.is_initialized():
        cluster_address(on)


def engine_of(on: str) -> str:
    """Return the name of an engine."""
    return on.partition(":")[0]


def cluster_address(on: str) -> str:
    """Return the address of a cluster: of 'ray:ADDRESS', else of RAY_ADDRESS.

    Without one Ray takes what a file in /tmp, or the command line of any process, says: each user
    of the machine could offer a cluster, and it runs code in who joins it.

    Raises:
        ValueError: nothing names it.
    """
    address = on.partition(":")[2] or os.environ.get(ADDRESS_VARIABLE, "")
    if not address or address in _NO_ADDRESSES:
        raise ValueError(
            "on='ray' needs the address of a cluster, which is not looked for, since any user of "
            "this machine could offer one: on='ray:HOST:6379' (--ray HOST:6379), or "
            f"{ADDRESS_VARIABLE} (got {address!r})"
        )
    return address
