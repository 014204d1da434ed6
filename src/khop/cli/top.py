"""`khop top`: graph servers, their sessions and clients, live in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from khop.cli.termination import unwound_when_terminated

if TYPE_CHECKING:
    from khop.cli.poller import Poll, Poller
    from khop.cli.view import Line
    from khop.distributed.rpc.keys import ClientKeys, ServerKeys

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 1.0
# A poll may take this share of the interval; late servers are shown as of their last reply.
_PATIENCE = 0.5
_STYLES = {"normal": "", "head": "\x1b[1m", "alarm": "\x1b[31m"}
_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, without a cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("master", metavar="HOST:PORT", help="address of graph server 0")
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--key-file", help="client.key of the job (or $KHOP_KEY_FILE)")
    keys.add_argument(
        "--insecure",
        action="store_true",
        help="ask servers beyond loopback without keys: anybody may read or change what they say",
    )
    parser.add_argument("--interval", type=_interval, default=1.0, help="seconds (default: 1)")
    parser.add_argument(
        "--once", action="store_true", help="print one picture, after one interval, and end"
    )
    parser.add_argument(
        "--json", action="store_true", help="print an object of JSON a line, one every interval"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show servers until 'q' or Ctrl-C."""
    from khop.cli.poller import Poller
    from khop.distributed.remote.addresses import Servers
    from khop.distributed.rpc.keys import check_secured

    master = _address(arguments.master)
    keys = None if arguments.insecure else _keys(arguments.key_file)
    check_secured(master.rpartition(":")[0], keys, arguments.insecure, "graph server 0")
    servers = Servers(
        master,
        None if keys is None else keys.server_key,
        None if keys is None else keys.credentials(),
    )
    with Poller(servers, _CONNECT_SECONDS) as watcher, contextlib.suppress(KeyboardInterrupt):
        if arguments.json:
            _print_json(watcher, arguments.interval, arguments.once)
        elif arguments.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print_once(watcher, arguments.interval)
        else:
            _show(watcher, arguments.interval)
    return 0


def _interval(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"0.1 to 3600 seconds (got {text})")
    return seconds


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"'{text}' is no HOST:PORT of graph server 0: 10.0.0.1:11234 for example")
    return text


def _keys(path: str | None) -> ClientKeys | ServerKeys | None:
    """Read the keys of a client; those of a server are accepted, too."""
    from khop.distributed.rpc.key_files import read_client_keys, read_server_keys
    from khop.errors import SecurityError

    try:
        return read_client_keys(path)
    except SecurityError:
        with contextlib.suppress(SecurityError):
            of_server = read_server_keys(path)
            return of_server
        raise


def _two_polls(watcher: Poller, interval: float) -> tuple[Poll, Poll]:
    from khop.cli.poller import LOST_AFTER

    before = watcher.poll(LOST_AFTER + 0.1)  # long enough to find lost servers
    time.sleep(interval)
    return watcher.poll(_ANSWER_SECONDS), before


def _print_once(watcher: Poller, interval: float) -> None:
    from khop.cli.view import render

    poll, before = _two_polls(watcher, interval)
    width = shutil.get_terminal_size((160, 50)).columns if sys.stdout.isatty() else 1000
    for line in render(poll, before, width):
        print(line.text)


def _print_json(watcher: Poller, interval: float, once: bool) -> None:
    from khop.cli.view import as_json

    poll, before = _two_polls(watcher, interval)
    while True:
        print(json.dumps(as_json(poll, before)), flush=True)
        if once:
            return
        time.sleep(interval)
        poll, before = watcher.poll(_PATIENCE * interval), poll


def _show(watcher: Poller, interval: float) -> None:
    from khop.cli.view import render

    before: Poll | None = None
    with _own_screen() as keys:
        while True:
            began = time.monotonic()
            poll = watcher.poll(_PATIENCE * interval)
            room = shutil.get_terminal_size((80, 24))
            _draw(render(poll, before, room.columns, room.lines))
            before = poll
            if not _pause(keys, interval - (time.monotonic() - began)):
                return


def _draw(lines: list[Line]) -> None:
    """Write over the previous screen, so that nothing flickers."""
    styled = [f"{_STYLES[line.style]}{line.text}\x1b[0m\x1b[K" for line in lines]
    sys.stdout.write("\x1b[H" + "\n".join(styled) + "\x1b[J")
    sys.stdout.flush()


def _pause(keys: int, seconds: float) -> bool:
    """Wait; return False as soon as 'q' is pressed or the keyboard is gone."""
    end = time.monotonic() + seconds
    while True:
        left = max(0.0, end - time.monotonic())
        if not select.select([keys], [], [], left)[0]:
            return True
        pressed = os.read(keys, 64)
        if not pressed or b"q" in pressed.lower():
            return False


@contextlib.contextmanager
def _own_screen() -> Iterator[int]:
    """Switch to the alternate screen and unbuffered keys; restore both in every case."""
    import termios
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    with unwound_when_terminated():
        try:
            tty.setcbreak(keys)
            sys.stdout.write(_ENTER)
            yield keys
        finally:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
