"""Statistics of a loader: counts of its batches, and time by phase. Runs in the trainer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from khop.metrics.families import Families
from khop.metrics.text import Labels, expose
from khop.tables import html_table, human_bytes
from khop.trace.clock import DISK, PHASES, ROWS, RULES, BatchTimings

TRAINER_PHASES = ("waiting", "collating", "consuming")
"""Phases of the thread that iterates, in this order for each batch."""

_SECOND = 1e9  # nanoseconds
_NUM_COLUMNS = len(TRAINER_PHASES) + 5 + len(ROWS) + len(BatchTimings._fields)
_MAX_NOTED = 64

_Counted = tuple[list[int], list[tuple[int, ...]]]
"""Sums of the columns, and rows that have not been added to the sums yet."""


@dataclass
class LoaderStats:
    """Counts and times of a loader's batches, over all epochs or since `reset_stats()`.

    `print(loader.stats())` shows a table. Counts and seconds of epochs of one loader that are
    iterated at the same time are added up.

    Attributes:
        batches: batches delivered.
        seeds: seeds in the batches, or links with link loaders.
        nodes, edges: nodes and edges in the batches.
        rows: node rows from the home partition ('local'), from copies of hot rows ('cached') and
            from other partitions ('remote'). An earlier batch left the 'reused' rows of other
            partitions in memory (`cache_memory`).
        delivered_bytes: bytes of the batches.
        remote_bytes: bytes that came from other partitions: neighbours and attributes.
        reused_bytes: bytes of rows of other partitions that an earlier batch left in memory.
        cache_bytes: bytes that the samplers have for rows of other partitions: as `cache_memory`
            says, at most as many as the rows have, or as many as graph servers grant.
        disk: reads past the page cache (`features_on_disk`): rows that were 'asked' for, rows of
            these that were 'missed' by the cache, 'reads' of the disk and their 'bytes'. The rules
            of `other_rules` would have missed 'lru_missed' and 'sieve_missed'. With
            `structure_on_disk`, neighbours, ids of edges and so on count as 'edge_values'. The
            cache had all of them but 'edge_values_missed'. 'packed' rows of those asked for came
            from a pack (`packed`).
        other_rules: rows of other partitions that the cache (`cache_memory`) would have requested
            by other rules: 'lru_missed' (the last uses stay) and 'sieve_missed' (SIEVE). It has
            requested `rows['remote']`. Estimates by a sample of the rows for large caches.
        trainer_seconds: time of the thread that iterates. 'waiting': in the loader, until a batch
            is ready, or making it if no other thread does. 'collating': from arrays to PyG's batch,
            transform, copy to a device. 'consuming': outside the loader, between two batches.
        sampler_seconds: the time of the samplers while an epoch is open, summed over them:
            'sampling' (drawing neighbours), 'gathering' (copying attributes), 'remote' (only
            waiting for other partitions), 'idle' (no batch is asked for: they are ahead of the
            trainer), 'other' (messages). These add up to the samplers' time until the last
            delivered batch was made.
        ready_seconds: time that batches lay ready before the trainer took them, summed.
        overflows: batches that got separate memory, because the arena was full.
        num_samplers: sampler processes or threads. 0 if the trainer makes batches itself. If its
            background thread draws meanwhile, this time counts as sampling.
        restarts: samplers that died and were restarted.
        placement: NUMA nodes, cores and memory policies of the 'trainer' and the 'samplers', as
            Linux reports them, and system calls that were 'refused'. Empty on machines with one
            node, and for loaders of graphs in memory.

    Example:
        >>> loader = NeighborLoader(data, [2], batch_size=3)
        >>> for batch in loader:
        ...     pass
        >>> loader.stats().batches, loader.stats().seeds
        (2, 6)
    """

    batches: int = 0
    seeds: int = 0
    nodes: int = 0
    edges: int = 0
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROWS, 0))
    delivered_bytes: int = 0
    remote_bytes: int = 0
    reused_bytes: int = 0
    cache_bytes: int = field(default=0, compare=False)
    disk: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DISK, 0))
    other_rules: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))
    trainer_seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(TRAINER_PHASES, 0.0)
    )
    sampler_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    ready_seconds: float = 0.0
    overflows: int = 0
    num_samplers: int = 0
    restarts: int = 0
    placement: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of the trainer with the loader: the sum of waiting, collating and consuming."""
        return sum(self.trainer_seconds.values())

    @property
    def queue_depth(self) -> float:
        """Mean number of batches that lay ready. At 0, the trainer always waits for the next.

        Computed as `ready_seconds` / `elapsed_seconds` (Little's law).
        """
        return self.ready_seconds / (self.elapsed_seconds or 1.0)

    @property
    def hit_rate(self) -> float:
        """Share of other partitions' rows that an earlier batch had left in memory.

        Copies of hot rows in the folder are not counted. 0 if there are no rows.
        """
        reused = self.rows["reused"]
        return reused / (reused + self.rows["remote"] or 1)

    def shares(self) -> dict[str, float]:
        """Return {source: share of node rows} for the sources in `rows`."""
        return _shares(self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return all attributes, and 'elapsed_seconds', 'queue_depth' and 'hit_rate', for JSON."""
        derived = {
            "elapsed_seconds": self.elapsed_seconds,
            "queue_depth": self.queue_depth,
            "hit_rate": self.hit_rate,
        }
        return {**asdict(self), **derived}

    def prometheus(self, labels: Mapping[str, object] | None = None) -> str:
        """Return metrics in Prometheus's text format. `khop.metrics` serves a page of them.

        Args:
            labels: names and values of the labels of each metric, without 'phase' and 'source'.

        Raises:
            ValueError: a label that khop sets, or that Prometheus does not know.
        """
        return of_stats([(labels or {}, self)])

    def summary(self) -> str:
        """Return a table of a few lines, which uses the names of the attributes."""
        return "\n".join([self._title(), *(f"{name:<12}{text}" for name, text in self._lines())])

    __str__ = summary

    def _repr_html_(self) -> str:
        return html_table(self._title(), self._lines())

    def _title(self) -> str:
        return (
            f"{self.batches:,} batches, {self.seeds:,} seeds, {self.nodes:,} nodes, "
            f"{self.edges:,} edges in {_seconds(self.elapsed_seconds)}"
        )

    def _lines(self) -> list[tuple[str, str]]:
        lines = [("trainer", _cells(self.trainer_seconds))]
        is_known = any(self.sampler_seconds.values())
        if is_known:
            who = f"{self.num_samplers} samplers" if self.num_samplers else "making"
            lines.append((who, _cells(self.sampler_seconds)))
        if is_known and self.num_samplers:
            each = _seconds(self.ready_seconds / max(self.batches, 1))
            lines.append(("ready", f"{self.queue_depth:.2f} batches on average, each for {each}"))
        if self.overflows or self.restarts:
            text = (
                f"{self.overflows:,} batches without room in the arena, "
                f"{self.restarts} samplers restarted"
            )
            lines.append(("trouble", text))
        if any(self.rows.values()):
            lines.append(("rows", _cells(self.rows)))
        text = (
            f"{human_bytes(self.delivered_bytes)} delivered, "
            f"{human_bytes(self.remote_bytes)} from other partitions"
        )
        if self.reused_bytes:
            text += f", {human_bytes(self.reused_bytes)} reused ({self.hit_rate:.1%} of their rows"
            asked = self.rows["reused"] + self.rows["remote"]
            text += f"{_rules_text(asked, self.other_rules)}; cache of "
            text += f"{human_bytes(self.cache_bytes)})"
        lines.append(("bytes", text))
        if self.disk["asked"] + self.disk["edge_values"]:
            lines.append(("disk", _disk_text(self.disk)))
        lines += [("placement", f"{name}: {text}") for name, text in self.placement.items()]
        return lines


def _rules_text(asked: int, missed: Mapping[str, int]) -> str:
    """Return the misses of caches by other rules, if they were counted."""
    if not asked or not any(missed[rule] for rule in RULES):
        return ""
    lru, sieve = (1 - min(missed[rule] / asked, 1) for rule in RULES)
    return f"; hits by LRU {lru:.1%}, by SIEVE {sieve:.1%}"


def _disk_text(disk: Mapping[str, int]) -> str:
    parts = []
    for name, asked, missed in (
        ("rows", disk["asked"], disk["missed"]),
        ("values of edges", disk["edge_values"], disk["edge_values_missed"]),
    ):
        if asked:
            share = f"{missed:,} ({missed / asked:.1%})"
            rules = _rules_text(asked, disk) if name == "rows" else ""
            if name == "rows" and disk["packed"]:
                rules = f"; {disk['packed'] / asked:.1%} of a pack"
            parts.append(f"{asked:,} {name} asked for, {share} not in the cache{rules}")
    return f"{', '.join(parts)}: {disk['reads']:,} reads of {human_bytes(disk['bytes'])}"


Sizes = tuple[int, ...]
"""Contents of a batch: numbers of nodes, of edges, and of node rows by origin (`ROWS`)."""


class StatsAccumulator:
    """Counter of a loader's batches and times, in nanoseconds, from which `LoaderStats` are made.

    `add` only appends to a list. Entries are summed in groups, which takes a third of the time. One
    thread counts. Other threads may take a `snapshot` at any time.
    """

    def __init__(self, num_samplers: int) -> None:
        self._num_samplers = num_samplers
        self.clear()

    def __reduce__(self) -> tuple[type[StatsAccumulator], tuple[int]]:
        """Pickle without the counts, since a loader in another process counts its own batches."""
        return StatsAccumulator, (self._num_samplers,)

    def clear(self) -> None:
        """Set all counts and times of the loader to 0."""
        self._counted: _Counted = [0] * _NUM_COLUMNS, []

    def add(
        self, times: tuple[int, int, int], ready: int, seeds: int, sizes: Sizes, made: BatchTimings
    ) -> None:
        """Count a batch.

        Args:
            times: nanoseconds of the trainer in each of `TRAINER_PHASES`.
            ready: nanoseconds that the batch lay ready.
            seeds: number of seeds.
            sizes: numbers of nodes, edges and rows of the batch.
            made: timings of the process that produced the batch.
        """
        sums, noted = self._counted
        noted.append((*times, ready, 1, seeds, *sizes, *made))
        if len(noted) == _MAX_NOTED:
            self._counted = _summed(sums, noted), []

    def snapshot(self, restarts: int = 0) -> LoaderStats:
        """Return the counts so far, with the number of restarted samplers."""
        sums, noted = self._counted
        counted = _summed(sums, list(noted))
        waiting, collating, consuming, ready, batches, seeds, nodes, edges, *rest = counted
        rows, made = rest[: len(ROWS)], BatchTimings(*rest[len(ROWS) :])
        trainer = [spent / _SECOND for spent in (waiting, collating, consuming)]
        samplers = [getattr(made, phase) / _SECOND for phase in PHASES]
        return LoaderStats(
            batches=batches,
            seeds=seeds,
            nodes=nodes,
            edges=edges,
            rows=dict(zip(ROWS, rows, strict=True)),
            delivered_bytes=made.nbytes,
            remote_bytes=made.remote_bytes,
            reused_bytes=made.reused_bytes,
            disk={name: getattr(made, f"disk_{name}") for name in DISK},
            other_rules={name: getattr(made, name) for name in RULES},
            trainer_seconds=dict(zip(TRAINER_PHASES, trainer, strict=True)),
            sampler_seconds=dict(zip(PHASES, samplers, strict=True)),
            ready_seconds=ready / _SECOND,
            overflows=made.overflows,
            num_samplers=self._num_samplers,
            restarts=restarts,
        )


def _summed(sums: list[int], noted: list[tuple[int, ...]]) -> list[int]:
    return [sum(column) for column in zip(sums, *noted, strict=True)]


def _shares(parts: Mapping[str, float]) -> dict[str, float]:
    total = sum(parts.values()) or 1
    return {name: value / total for name, value in parts.items()}


def _cells(parts: Mapping[str, float]) -> str:
    def shown(value: float) -> str:
        return f"{value:,}" if isinstance(value, int) else _seconds(value)

    shares = _shares(parts)
    cells = [f"{name} {shown(value)} ({shares[name]:.1%})" for name, value in parts.items()]
    return "  ".join(cells)


def _seconds(value: float) -> str:
    if value < 1:
        return f"{1e3 * value:.3g} ms"
    return f"{value:,.2f} s" if value < 100 else f"{value:,.0f} s"


class HasStats(Protocol):
    """Loader with a method `stats`, for `of_loaders`.

    Example:
        >>> loader: HasStats = khop.loader.NeighborLoader(data, [2], batch_size=2)
        >>> loader.stats().batches
        0
    """

    def stats(self) -> LoaderStats:
        """Return counts and times of the loader's batches so far."""


def of_loaders(loaders: Mapping[str, HasStats], labels: Labels | None = None) -> str:
    """Return loaders' statistics as text for Prometheus. Any thread may call this at any time.

    Args:
        loaders: loaders by the value of their label 'loader'.
        labels: further labels, {'rank': 0} for example, without 'loader', 'phase' and 'source'.

    Returns:
        The page, in Prometheus's text format, with times in seconds and sizes in bytes.

    Raises:
        ValueError: a label that khop sets, or that Prometheus does not know.

    Example:
        >>> loader = NeighborLoader(data, [2], batch_size=3)
        >>> page = of_loaders({"train": loader}, {"rank": 0})
        >>> 'khop_loader_batches_total{loader="train",rank="0"} 0' in page
        True
    """
    further = labels or {}
    _check_free(further, "loader")
    return of_stats(
        ({**further, "loader": name}, loader.stats()) for name, loader in loaders.items()
    )


def of_stats(stats: Iterable[tuple[Labels, LoaderStats]]) -> str:
    """Return statistics of loaders, each with its labels, as text for Prometheus."""
    families = Families("khop_loader_")
    for labels, counted in stats:
        _check_free(labels, "phase", "source")
        _add_loader(families, counted, labels)
    return expose(families.values())


def _check_free(labels: Labels, *taken: str) -> None:
    """Raise ValueError if a label has one of the names that khop sets itself (`taken`)."""
    for name in taken:
        if name in labels:
            raise ValueError(
                f"khop sets the label '{name}' itself (got {name}={labels[name]!r:.80}): give "
                "yours another name"
            )


def _add_loader(families: Families, stats: LoaderStats, labels: Labels) -> None:
    lay_ready = (
        "How long batches lay ready before they were taken, summed up. Its rate is the mean queue "
        "depth."
    )
    families.counters(
        labels,
        ("batches", "Batches delivered.", stats.batches),
        ("seeds", "Seeds (of link loaders: links) in them.", stats.seeds),
        ("nodes", "Nodes in them.", stats.nodes),
        ("edges", "Edges in them.", stats.edges),
        ("delivered_bytes", "Bytes of the batches.", stats.delivered_bytes),
        ("remote_bytes", "Bytes that came from other partitions.", stats.remote_bytes),
        ("reused_bytes", "Bytes of their rows that were still in memory.", stats.reused_bytes),
        ("ready_seconds", lay_ready, stats.ready_seconds),
        ("overflows", "Batches that did not fit into the arena.", stats.overflows),
        ("sampler_restarts", "Samplers that died and were started again.", stats.restarts),
    )
    help = "Rows of nodes by origin: home partition, copies, rows in memory, other partitions."
    for source, count in stats.rows.items():
        families.counters({**labels, "source": source}, ("rows", help, count))
    counted = stats.disk
    values, missed = counted["edge_values"], counted["edge_values_missed"]
    families.counters(
        labels,
        ("disk_rows", "Rows of attributes on disk that were asked for.", counted["asked"]),
        ("disk_missed_rows", "Rows of these that were not in the cache.", counted["missed"]),
        ("disk_reads", "Reads of the disk past the page cache.", counted["reads"]),
        ("disk_bytes", "Bytes of these reads.", counted["bytes"]),
        ("disk_packed_rows", "Rows of these that came from a pack.", counted["packed"]),
        ("disk_lru_missed", "Misses by LRU, with as many rows.", counted["lru_missed"]),
        ("disk_sieve_missed", "Misses by SIEVE.", counted["sieve_missed"]),
        ("remote_lru_missed", "Remote rows by LRU.", stats.other_rules["lru_missed"]),
        ("remote_sieve_missed", "Remote rows by SIEVE.", stats.other_rules["sieve_missed"]),
        ("disk_edge_values", "Values of edges that were asked for.", values),
        ("disk_missed_edge_values", "Values of these not in the cache.", missed),
    )
    help = "The trainer's time: waiting for batches, collating, consuming."
    for phase, seconds in stats.trainer_seconds.items():
        families.counters({**labels, "phase": phase}, ("trainer_seconds", help, seconds))
    help = "Time of the processes and threads that make batches, summed, by phase."
    for phase, seconds in stats.sampler_seconds.items():
        families.counters({**labels, "phase": phase}, ("sampler_seconds", help, seconds))
    families.gauges(
        labels,
        ("samplers", "Sampler processes or threads.", stats.num_samplers),
        ("cache_bytes", "Bytes for rows of other partitions.", stats.cache_bytes),
    )
