"""A process at hand that takes the place of a sampler that dies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from khop.distributed.processes.child import ChildProcess


class Standby:
    """Starts processes of a program, and keeps one in reserve when all are started.

    The reserve has imported what it needs, nearly all of the time that a sampler takes to start,
    and waits to be told what to do. It takes some 30 MB. Ends with the last reference to this.

    Args:
        module: the program, `khop.distributed.sampling.worker` for example.
        number: how many processes are started before one is kept in reserve.
        imports: modules that the reserve imports beside.
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
        """A process with a configuration: the reserve if there is one, else a new one."""
        process, self._reserve = self._reserve, None
        if process is None or process.has_ended:
            process = ChildProcess(self._module, config, memory)
        else:
            process.configure(config, memory)
        self._number -= 1
        if self._number <= 0:
            self._reserve = ChildProcess(self._module, None, imports=self._imports)
        return process
