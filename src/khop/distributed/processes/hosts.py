"""Identity and address of this machine. Trainers and graph servers. Imports no torch."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import struct
from pathlib import Path

from khop.loopback import is_loopback


def host_identity() -> str:
    """Return an id of this machine, equal for processes that can share socket files."""
    parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    parts += [str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("net", "mnt")]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def maps_same_host(option: bool | None) -> bool:
    """Return whether parts of this host are mapped, not requested from their servers.

    Args:
        option: the user's choice. If None, $KHOP_SAME_HOST_READS, or True without it.

    Raises:
        ValueError: the variable is neither '0' nor '1'.
    """
    if option is not None:
        return bool(option)
    value = os.environ.get("KHOP_SAME_HOST_READS", "1")
    if value not in ("0", "1"):
        raise ValueError(f"KHOP_SAME_HOST_READS must be 0 or 1 (got {value!r})")
    return value == "1"


INTERFACE = "KHOP_INTERFACE"
"""Environment variable with the network interface whose address other machines use."""

# Request of the Linux kernel for the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915
# Address of no machine (RFC 5737), which is routed as any other.
_ELSEWHERE = "192.0.2.1"


def host_address(master: str | None = None) -> str:
    """Return the address at which other machines reach this one.

    It is the one of the interface that KHOP_INTERFACE names, else on the route to `master`.

    Args:
        master: host name or address. If None, $MASTER_ADDR, or this machine without that.

    Raises:
        ValueError: KHOP_INTERFACE is no interface of this machine with an IPv4 address.
    """
    if name := os.environ.get(INTERFACE):
        return interface_address(name)
    master = master or os.environ.get("MASTER_ADDR", "localhost")
    return _address_towards(master) or "127.0.0.1"


def outside_address() -> str | None:
    """Return an address of this machine that is not loopback, or None if none is certain.

    It is the one of the default route, else of the host's name, else the only one there is.
    """
    ordered = [_address_towards(_ELSEWHERE), _address_towards(socket.gethostname())]
    first = next((one for one in ordered if one is not None and not is_loopback(one)), None)
    if first is not None:
        return first
    addresses = set[str]()
    for _, name in socket.if_nameindex():
        with contextlib.suppress(ValueError):
            addresses.add(interface_address(name))
    others = [one for one in addresses if not is_loopback(one)]
    return others[0] if len(others) == 1 else None


def interface_address(name: str) -> str:
    """Return the IPv4 address of a network interface of this machine.

    Raises:
        ValueError: there is no such interface, or it has no IPv4 address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", name.encode()[:15])
            reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            known = ", ".join(sorted(known for _, known in socket.if_nameindex()))
            raise ValueError(
                f"'{name:.40}' is no network interface of {socket.gethostname()} with an IPv4 "
                f"address ({error.strerror}): there are {known}"
            ) from None
    return socket.inet_ntoa(reply[20:24])


def _address_towards(host: str) -> str | None:
    with contextlib.suppress(OSError):
        family, socket_type, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket_type) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    return None
