"""Standby process of a trainer: replaces a sampler that has ended, without the start-up time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from khop.distributed.processes.child import ChildProcess


class Standby:
    """Factory of processes that keeps one in reserve when all are started.

    The reserve has imported its modules, which is nearly all of a sampler's start-up time, and
    waits for a configuration. It takes some 30 MB, and ends with the last reference to this object.

    Args:
        module: the program, `khop.distributed.sampling.worker` for example.
        number: number of processes to start before one is kept in reserve.
        imports: further modules that the reserve imports.
    """

    def __init__(self, module: str, number: int, imports: Sequence[str]) -> None:
        self._module = module
        self._number = number
        self._imports = imports
        self._reserve: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the reserve."""
        return None if self._reserve is None else self._reserve.pid

    def __call__(self, config: Mapping[str, Any], memory: Sequence[int]) -> ChildProcess:
        """Return a process with a configuration: the reserve if there is one, else a new one."""
        process, self._reserve = self._reserve, None
        if process is None or process.has_ended:
            process = ChildProcess(self._module, config, memory)
        else:
            process.configure(config, memory)
        self._number -= 1
        if self._number <= 0:
            self._reserve = ChildProcess(self._module, None, imports=self._imports)
        return process
