"""Stand-in for MLPerf's logger, a package of GitHub's: prints what is logged."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any


class MLLogger:
    """Logger that prints each entry."""

    logger = logging.getLogger("mlperf")

    def event(self, key: str, value: Any = None, metadata: Any = None) -> None:
        """Print an entry."""
        print("mllog", key, value, metadata, flush=True)

    start = end = event


class _Constants(ModuleType):
    """Keys: each is its name in small letters."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name.lower()


class _Logging(ModuleType):
    MLLogger = MLLogger
    get_mllogger = MLLogger

    @staticmethod
    def config(**options: Any) -> None:
        """Do nothing: entries are printed."""


mllog = _Logging(f"{__name__}.mllog")
mllog.mllog = mllog
mllog.constants = _Constants(f"{__name__}.mllog.constants")
for module, known in (("", mllog), (".mllog", mllog), (".constants", mllog.constants)):
    sys.modules[f"{__name__}.mllog{module}"] = known
