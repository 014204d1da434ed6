"""Public type of loaders' statistics: `loader.stats()` returns a `LoaderStats`."""

from khop.metrics.loader_stats import TRAINER_PHASES, LoaderStats

__all__ = ["TRAINER_PHASES", "LoaderStats"]
