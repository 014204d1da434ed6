"""Two network namespaces, and a cable between them that can be slow, silent or cut.

Each namespace has a TUN device. The cable is a thread that reads packets from one device and writes
them to the other: later (delay), after a long pause (stall), or never (cut). So the cable affects
every connection, of any process and port, and needs no `netem` in the kernel. It needs root,
iproute2 and /dev/net/tun.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from pathlib import Path

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_DEVICE = Path("/dev/net/tun")
_MTU = 60_000  # few packets for many bytes: they pass through Python
_MAX_HELD = 1024  # packets in flight in each direction; TCP sends dropped ones again


class NoNetworkError(RuntimeError):
    """Error if this machine does not allow network namespaces, with the reason."""


class TwoHosts:
    """Two namespaces, each like a separate machine to the processes in it.

    Attributes:
        addresses: address of each namespace.
        devices: name of the network device of each namespace.
        prefixes: for each namespace, words before a command that run the command in it.
        cable: cable between the namespaces.

    Raises:
        NoNetworkError: not root, or tools or kernel lack a feature.
    """

    def __init__(self) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None or not _DEVICE.exists():
            raise NoNetworkError("network faults need root, iproute2 and /dev/net/tun")
        self._names = [f"khop-soak-{os.getpid()}-{end}" for end in (0, 1)]
        self.devices = [f"ks{os.getpid() % 10_000_000}{end}" for end in "ab"]
        self.addresses = ["10.213.78.1", "10.213.78.2"]
        self.prefixes = [["ip", "netns", "exec", name] for name in self._names]
        ends: list[int] = []
        try:
            for host in (0, 1):
                _ip("netns", "add", self._names[host])
                ends.append(_open_tun(self.devices[host]))
                self._set_up(host)
        except (OSError, subprocess.CalledProcessError) as error:
            for end in ends:
                os.close(end)
            self._delete()
            raise NoNetworkError(f"this system does not allow namespaces: {error}") from error
        self.cable = Cable((ends[0], ends[1]))

    def _set_up(self, host: int) -> None:
        name, device = self._names[host], self.devices[host]
        _ip("link", "set", device, "netns", name)
        _ip("-n", name, "addr", "add", f"{self.addresses[host]}/24", "dev", device)
        _ip("-n", name, "link", "set", device, "mtu", str(_MTU), "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def set_link(self, host: int, is_up: bool) -> None:
        """Take the network link of one host down or up, as if its cable were pulled."""
        state = "up" if is_up else "down"
        _ip("-n", self._names[host], "link", "set", self.devices[host], state)

    def close(self) -> None:
        """Close the cable and remove both namespaces."""
        self.cable.close()
        self._delete()

    def _delete(self) -> None:
        for name in self._names:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)


class Cable:
    """Carrier of packets between two TUN devices.

    Attributes:
        delay: seconds that a packet takes. More than a second is a stall.
        rate: bytes per second in each direction. If infinite, packets do not wait for each other.
        is_cut: if True, nothing arrives.

    Args:
        ends: descriptors of both devices, which the cable closes.
    """

    def __init__(self, ends: tuple[int, int]) -> None:
        self._ends = ends
        self._held: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}
        self._sent = dict.fromkeys(ends, 0.0)  # when the last packet of each end was sent
        self.delay = 0.0
        self.rate = math.inf
        self.is_cut = False
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._run, name="cable", daemon=True)
        self._thread.start()

    def set(self, *, delay: float = 0.0, is_cut: bool = False, rate: float = math.inf) -> None:
        """Change `delay` and `is_cut`, also for packets in flight, and `rate`."""
        self.delay, self.is_cut, self.rate = delay, is_cut, rate
        self._sent = dict.fromkeys(self._sent, 0.0)
        os.write(self._waker, b".")

    def _run(self) -> None:
        poller = select.poll()
        for end in (*self._ends, self._wake):
            poller.register(end, select.POLLIN)
        while True:
            for end, _ in poller.poll(self._pause()):
                if end == self._wake:
                    if b"x" in os.read(end, 4096):
                        return
                else:
                    self._take(end)
            for end in self._ends:
                self._release(end)

    def _take(self, end: int) -> None:
        try:
            packet = os.read(end, 1 << 16)
        except OSError:  # the link is down
            return
        if not self.is_cut and len(self._held[end]) < _MAX_HELD:
            begun = max(time.monotonic(), self._sent[end])
            self._sent[end] = begun + len(packet) / self.rate
            self._held[end].append((self._sent[end], packet))

    def _release(self, end: int) -> None:
        held, other = self._held[end], self._ends[end == self._ends[0]]
        if self.is_cut:
            held.clear()
        while held and time.monotonic() >= held[0][0] + self.delay:
            with contextlib.suppress(OSError):
                os.write(other, held.popleft()[1])

    def _pause(self) -> float | None:
        """Return the milliseconds until the next packet is due, or None if there is none."""
        due = [held[0][0] + self.delay for held in self._held.values() if held]
        return max(0.0, min(due) - time.monotonic()) * 1000 if due else None

    def close(self) -> None:
        """End the thread and close the devices, which removes them."""
        os.write(self._waker, b"x")
        self._thread.join()
        for descriptor in (*self._ends, self._wake, self._waker):
            os.close(descriptor)


def _open_tun(device: str) -> int:
    descriptor = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN_NO_PI))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
