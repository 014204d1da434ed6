"""Partition server that gets SIGTERM between two frames of its first reply."""

import signal

from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.partition_server import run_server
from khop.storage.folder import PartitionFolder
from khop.storage.part import Part


class _Frames(list):
    """Frames of a reply. SIGTERM comes when the second one is to be sent."""

    def __iter__(self):
        for number, frame in enumerate(super().__iter__()):
            if number == 1:
                signal.raise_signal(signal.SIGTERM)
            yield frame


class _Interrupted(RequestHandler):
    def steps(self, frames, *source):
        return _Frames((yield from super().steps(frames, *source)))


def main():
    run_server(lambda config: _Interrupted(Part(PartitionFolder(config["root"]), config["part"])))
