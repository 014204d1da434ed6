"""Partition server that gets SIGTERM after it has removed its socket, before its folder."""

import os
import signal
from pathlib import Path

from khop.distributed.rpc import partition_server as server

_unlink = Path.unlink


def _unlink_and_interrupt(self, *args):
    _unlink(self, *args)
    os.kill(os.getpid(), signal.SIGTERM)


def main():
    """Run the server."""
    Path.unlink = _unlink_and_interrupt
    server.main()
