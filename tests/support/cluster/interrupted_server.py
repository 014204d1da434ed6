"""A partition server that SIGTERM interrupts between removing its socket and the folder of that."""

import os
import signal
from pathlib import Path

from khop.distributed.rpc import partition_server as server

_unlink = Path.unlink


def _unlink_and_interrupt(self, *args):
    _unlink(self, *args)
    os.kill(os.getpid(), signal.SIGTERM)


def main():
    """The server's program."""
    Path.unlink = _unlink_and_interrupt
    server.main()
