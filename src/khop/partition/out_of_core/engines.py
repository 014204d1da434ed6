"""Engines that partition on several machines, by name. Imports no torch."""

from __future__ import annotations

import importlib.util
import os
import sys

ENGINES = ("ray",)
ADDRESS_VARIABLE = "RAY_ADDRESS"

# Ray takes these for "look for a cluster here" and "start one".
_NO_ADDRESSES = ("auto", "local")


def check_engine(on: str | None) -> None:
    """Check option `on`, the machines that partition: 'ray', 'ray:ADDRESS', or None for this one.

    Raises:
        ValueError: `on` is something else, or the cluster has no address.
        ModuleNotFoundError: Ray is not installed.
    """
    if on is None:
        return
    name = str(on).partition(":")[0]
    if name not in ENGINES:
        raise ValueError(f"on must be 'ray', 'ray:ADDRESS', or None for this machine (got {on!r})")
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(
            f"on='{name}' (--on {name}) needs package {name}: pip install {name}", name=name
        )
    ray = sys.modules.get(name)
    if ray is None or not ray.is_initialized():
        cluster_address(on)


def cluster_address(on: str) -> str:
    """Return the address of a cluster: the one in 'ray:ADDRESS', else RAY_ADDRESS.

    Without an address, Ray would read one from a file in /tmp or from any process's command line.
    Each user of the machine could offer a cluster there, and a cluster runs code in its clients.

    Raises:
        ValueError: there is no address.
    """
    address = on.partition(":")[2] or os.environ.get(ADDRESS_VARIABLE, "")
    if not address or address in _NO_ADDRESSES:
        raise ValueError(
            "on='ray' needs the address of a cluster, which is not looked for, since any user of "
            "this machine could offer one: on='ray:HOST:6379' (--ray HOST:6379), or "
            f"{ADDRESS_VARIABLE} (got {address!r})"
        )
    return address
