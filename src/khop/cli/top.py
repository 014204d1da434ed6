"""`khop top`: live display of graph servers, their loaders and clients in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from khop.cli.arguments import declare
from khop.cli.termination import unwound_when_terminated

if TYPE_CHECKING:
    from khop.cli.poller import Poll, Poller
    from khop.distributed.rpc.keys import ClientKeys, ServerKeys

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 1.0
# Share of the interval that a poll may take. Late servers are shown by their last reply.
_PATIENCE = 0.5
_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, without a cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_TABLE = """\
master HOST:PORT        address of graph server 0
--interval INTERVAL     seconds (default: 1)
--once                  print one screen, after one interval, and end
--json                  print a line of JSON per interval
"""
_KEYS = """\
--key-file KEY_FILE     client.key of the job (or $KHOP_KEY_FILE)
--insecure              query servers beyond loopback without keys: others can read or change the
                        replies
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop top` to its parser."""
    declare(parser, _TABLE, interval=1.0)
    declare(parser.add_mutually_exclusive_group(), _KEYS)


@unwound_when_terminated()
def run(arguments: argparse.Namespace) -> int:
    """Show the state of graph servers until Ctrl-C. Return the exit code."""
    from khop.cli.poller import Poller
    from khop.distributed.remote.addresses import Servers
    from khop.distributed.rpc.keys import check_secured

    master = _address(arguments.master)
    keys = None if arguments.insecure else _keys(arguments.key_file)
    check_secured(master.rpartition(":")[0], keys, arguments.insecure, "graph server 0")
    servers = Servers.with_keys(master, keys)
    is_live = not (arguments.json or arguments.once) and sys.stdout.isatty()
    with Poller(servers, _CONNECT_SECONDS) as poller, contextlib.suppress(KeyboardInterrupt):
        if is_live:
            _draw(poller, arguments.interval)
        else:
            once = arguments.once or not arguments.json
            _print(poller, arguments.interval, once, arguments.json)
    return 0


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"'{text}' is no HOST:PORT of graph server 0: 10.0.0.1:11234 for example")
    return text


def _keys(path: str | None) -> ClientKeys | ServerKeys | None:
    """Read encryption keys of a client or, if there are none, of a server, from a folder."""
    from khop.distributed.rpc.key_files import read_client_keys, read_server_keys
    from khop.errors import SecurityError

    try:
        return read_client_keys(path)
    except SecurityError:
        with contextlib.suppress(SecurityError):
            return read_server_keys(path)
        raise


def _polls(poller: Poller, interval: float, first: float, later: float) -> Iterator[Poll]:
    """Yield states of all servers, with pauses of `interval` seconds, for ever.

    Replies are waited for `first` seconds for the first state, and `later` seconds after it.
    """
    yield poller.poll(first)
    while True:
        time.sleep(interval)
        yield poller.poll(later)


def _print(poller: Poller, interval: float, once: bool, as_json: bool) -> None:
    from khop.cli import view
    from khop.cli.poller import LOST_AFTER

    later = _ANSWER_SECONDS if once else _PATIENCE * interval
    polls = _polls(poller, interval, LOST_AFTER + 0.1, later)  # long enough to find lost servers
    next(polls)  # has no rates yet
    for poll in polls:
        width = shutil.get_terminal_size((160, 50)).columns if sys.stdout.isatty() else 1000
        text = json.dumps(view.as_json(poll)) if as_json else "\n".join(view.render(poll, width))
        print(text, flush=True)
        if once:
            return


def _draw(poller: Poller, interval: float) -> None:
    """Show states of all servers until Ctrl-C, each over the one before without flicker."""
    from khop.cli import view

    sys.stdout.write(_ENTER)
    try:
        for poll in _polls(poller, interval, _PATIENCE * interval, _PATIENCE * interval):
            lines = view.render(poll, *shutil.get_terminal_size())
            sys.stdout.write("\x1b[H" + "\x1b[K\n".join(lines) + "\x1b[K\x1b[J")
            sys.stdout.flush()
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
