"""Attributes whose readers stop or are killed. Tasks of other processes import this module."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from khop.data import Feature


class HeldFeature(Feature):
    """Attribute whose first reader reports its process in a file, and waits to be killed."""

    def __init__(self, values, report: Path):
        super().__init__(values)
        self._report = report

    def gather(self, rows, *arguments):
        try:
            report = self._report.open("x")
        except FileExistsError:
            return super().gather(rows, *arguments)
        with report:
            report.write(f"{os.getpid()}\n")
        time.sleep(60)
        raise AssertionError("nobody has killed this process")


class DeadlyFeature(Feature):
    """Attribute whose readers are killed, except the process that made it."""

    def __init__(self, values):
        super().__init__(values)
        self._maker = os.getpid()

    def gather(self, rows, *arguments):
        if os.getpid() != self._maker:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().gather(rows, *arguments)


class FaultyFeature(Feature):
    """Attribute that raises an error when it is read."""

    def gather(self, rows, *arguments):
        raise ValueError("row 5 is no number")
