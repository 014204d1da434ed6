"""Network namespaces as hosts, and a cable between them that can be slow, silent or cut.

Each namespace has a TUN device. The cable is a thread that reads packets from one device and
writes them to the device of their address: later (delay), after a long pause (stall), or never
(cut). So the cable affects every connection, of any process and port, and needs no `netem` in the
kernel. It needs root, iproute2 and /dev/net/tun. The thread is a limit of its own:
`Hosts.measured_limit`.
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
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

DEVICE = "eth0"
"""Name of the network device in each namespace."""

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_TUN = Path("/dev/net/tun")
_MTU = 60_000  # few packets for many bytes: they pass through Python
_MAX_HELD = 1024  # packets in flight in each direction; TCP sends dropped ones again


class NoNetworkError(RuntimeError):
    """Error if this machine does not allow network namespaces, with the reason."""


class Hosts:
    """Namespaces, each like a separate machine to the processes in it.

    Args:
        count: number of namespaces, at most 250.

    Attributes:
        addresses: address of each namespace.
        prefixes: for each namespace, words before a command that run the command in it.
        cable: cable between the namespaces.

    Raises:
        NoNetworkError: not root, or tools or kernel lack a feature.
    """

    def __init__(self, count: int = 2) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None or not _TUN.exists():
            raise NoNetworkError("network faults need root, iproute2 and /dev/net/tun")
        self._names = [f"khop-soak-{os.getpid()}-{end}" for end in range(count)]
        self._devices = [f"ks{os.getpid() % 1_000_000}x{end}" for end in range(count)]
        self.addresses = [f"10.213.78.{end + 1}" for end in range(count)]
        self.prefixes = [["ip", "netns", "exec", name] for name in self._names]
        ends: list[int] = []
        try:
            for host in range(count):
                _ip("netns", "add", self._names[host])
                ends.append(_open_tun(self._devices[host]))
                self._set_up(host)
        except (OSError, subprocess.CalledProcessError) as error:
            for end in ends:
                os.close(end)
            self._delete()
            raise NoNetworkError(f"this system does not allow namespaces: {error}") from error
        self.cable = Cable(ends)

    def _set_up(self, host: int) -> None:
        name = self._names[host]
        _ip("link", "set", self._devices[host], "netns", name, "name", DEVICE)
        _ip("-n", name, "addr", "add", f"{self.addresses[host]}/24", "dev", DEVICE)
        _ip("-n", name, "link", "set", DEVICE, "mtu", str(_MTU), "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def set_link(self, host: int, is_up: bool) -> None:
        """Take the network link of one host down or up, as if its cable were pulled."""
        state = "up" if is_up else "down"
        _ip("-n", self._names[host], "link", "set", DEVICE, state)

    def measured_limit(self, mebibytes: int = 256) -> float:
        """Return the MB/s of one TCP connection from the last host to the first, as the cable is.

        With a cable without rate and delay this is the limit of its thread, for all hosts together.
        """
        words = [sys.executable, "-c", _RECEIVE, self.addresses[0]]
        receiver = subprocess.Popen([*self.prefixes[0], *words], stdout=subprocess.PIPE, text=True)
        assert receiver.stdout
        port = receiver.stdout.readline().strip()
        words = [sys.executable, "-c", _SEND, self.addresses[0], port, str(mebibytes)]
        subprocess.run([*self.prefixes[-1], *words], check=True)
        seconds = float(receiver.communicate(timeout=60)[0])
        return mebibytes * (1 << 20) / seconds / 1e6

    def close(self) -> None:
        """Close the cable and remove the namespaces."""
        self.cable.close()
        self._delete()

    def _delete(self) -> None:
        for name in self._names:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)


_RECEIVE = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
connection, begin = listener.accept()[0], time.monotonic()
while connection.recv(1 << 20): pass
print(time.monotonic() - begin)
"""
_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    for _ in range(int(sys.argv[3])): connection.sendall(bytes(1 << 20))
"""


class Cable:
    """Carrier of packets between TUN devices, as a switch: to the device of a packet's address.

    Attributes:
        delay: seconds that a packet takes. More than a second is a stall.
        rate: bytes per second of each device, out and in. If infinite, packets do not wait for each
            other.
        is_cut: if True, nothing arrives.
        cut_off: indices of devices from and to which nothing arrives.
        longest: bytes of the longest packet that arrives.
        carried: bytes that have arrived.

    Args:
        ends: descriptors of the devices, which the cable closes. The last byte of the address of a
            device is its index and 1.
    """

    def __init__(self, ends: Sequence[int]) -> None:
        self._ends = list(ends)
        # Packets to each device, when they leave the cable of a delay of 0.
        self._held: list[deque[tuple[float, bytes]]] = [deque() for _ in ends]
        self._sent, self._received = [0.0] * len(ends), [0.0] * len(ends)
        self.delay = 0.0
        self.rate = math.inf
        self.is_cut = False
        self.cut_off: frozenset[int] = frozenset()
        self.longest = 1 << 16
        self.carried = 0
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._run, name="cable", daemon=True)
        self._thread.start()

    def set(
        self,
        *,
        delay: float = 0.0,
        is_cut: bool = False,
        rate: float = math.inf,
        cut_off: Collection[int] = (),
        longest: int = 1 << 16,
    ) -> None:
        """Change `delay`, `is_cut` and `cut_off`, also for packets in flight, and the others."""
        self.delay, self.is_cut, self.rate, self.longest = delay, is_cut, rate, longest
        self.cut_off = frozenset(cut_off)
        self._sent, self._received = [0.0] * len(self._ends), [0.0] * len(self._ends)
        os.write(self._waker, b".")

    def _run(self) -> None:
        poller = select.poll()
        index_of = {end: index for index, end in enumerate(self._ends)}
        for end in (*self._ends, self._wake):
            poller.register(end, select.POLLIN)
        while True:
            for end, _ in poller.poll(self._pause()):
                if end == self._wake:
                    if b"x" in os.read(end, 4096):
                        return
                else:
                    self._take(index_of[end])
            for index in range(len(self._ends)):
                self._release(index)

    def _take(self, source: int) -> None:
        try:
            packet = os.read(self._ends[source], 1 << 16)
        except OSError:  # the link is down
            return
        target = packet[19] - 1 if len(packet) >= 20 and packet[0] >> 4 == 4 else -1
        if not 0 <= target < len(self._ends) or self.is_cut or {source, target} & self.cut_off:
            return
        if len(packet) <= self.longest and len(self._held[target]) < _MAX_HELD:
            seconds = len(packet) / self.rate
            begun = max(time.monotonic(), self._sent[source])
            self._sent[source] = begun + seconds
            # Two sources of one target share its rate.
            self._received[target] = max(self._sent[source], self._received[target] + seconds)
            self._held[target].append((self._received[target], packet))

    def _release(self, target: int) -> None:
        held = self._held[target]
        if self.is_cut or target in self.cut_off:
            held.clear()
        while held and time.monotonic() >= held[0][0] + self.delay:
            packet = held.popleft()[1]
            self.carried += len(packet)
            with contextlib.suppress(OSError):
                os.write(self._ends[target], packet)

    def _pause(self) -> float | None:
        """Return the milliseconds until the next packet is due, or None if there is none."""
        due = [held[0][0] + self.delay for held in self._held if held]
        return max(0.0, min(due) - time.monotonic()) * 1000 if due else None

    def close(self) -> None:
        """End the thread and close the devices, which removes them."""
        os.write(self._waker, b"x")
        self._thread.join()
        for descriptor in (*self._ends, self._wake, self._waker):
            os.close(descriptor)


def _open_tun(device: str) -> int:
    descriptor = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN_NO_PI))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
