"""Test for loopback addresses, which only this machine reaches. Any process, no torch."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return True for addresses of this machine's loopback, and for the name `localhost`.

    Loopback is 127.0.0.0/8, also in IPv6's form, and ::1, with or without brackets. Other names do
    not count: the resolver may return another address later.

    Example:
        >>> is_loopback("127.0.0.2"), is_loopback("::ffff:127.0.0.1"), is_loopback("10.0.0.1")
        (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # Python before 3.13 does not look into mapped addresses.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
