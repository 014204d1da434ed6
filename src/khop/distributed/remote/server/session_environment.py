"""Settings of a graph server that its sessions and their samplers use. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from khop.data.direct_rows import DiskOptions
from khop.distributed.remote.server.cache_budget import CacheBudget, CacheGrant
from khop.distributed.remote.session_messages import SessionSpec
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.sampling.process_handle import Program, start_sampler


@dataclass(frozen=True)
class SessionEnvironment:
    """Settings and functions of a graph server that all of its sessions use.

    Attributes:
        sampler: configuration that all samplers have in common: root, credentials, modes.
        parts, num_parts: partitions of the server, and number of partitions of the folder.
        endpoints: {partition: endpoint of its server}, kept up to date.
        labels: descriptor of labels that samplers read. None if there are none.
        counted: called with session, bytes and seconds of a batch that was sent.
        restarted: called when a sampler has died and is restarted.
        program: starts a sampler.
        mapped: partitions that samplers read from files, kept up to date. Rows of users' stores are
            requested nevertheless, so that endpoints of all partitions are needed then.
        budget: bytes for rows of other partitions, of all sessions.
    """

    sampler: Mapping[str, Any]
    parts: Sequence[int]
    num_parts: int
    endpoints: Mapping[int, Endpoint]
    labels: int | None
    counted: Callable[[str, int, float], None]
    restarted: Callable[[], None]
    program: Program = start_sampler
    mapped: Collection[int] = ()
    budget: CacheBudget = field(default_factory=CacheBudget)

    def missing_parts(self) -> list[int]:
        """Return the partitions that samplers need, but that no server has registered yet."""
        homes = set(self.parts) if len(self.parts) == 1 else set()
        every = set(range(self.num_parts)) - homes
        return sorted(every - set(self.endpoints)) if self.num_parts > 1 else []

    def _read_by(self, index: int) -> set[int]:
        """Return the partitions whose files sampler `index` of a session reads."""
        part = self.parts[index % len(self.parts)]
        return {part} if self.sampler.get("stores") else {part, *self.mapped}

    def grant(self, spec: SessionSpec) -> CacheGrant:
        """Take bytes of the budget, if samplers of a session (`spec`) profit from known batches."""
        disk = DiskOptions.from_json(self.sampler.get("disk"))
        profits = len(self._read_by(0)) < self.num_parts or bool(disk and disk.names)
        if spec.worker_devices is not None or not profits:
            return CacheGrant()
        return self.budget.take(spec.cache_bytes, spec.num_workers)

    def sampler_config(
        self, spec: SessionSpec, index: int, device: str | None, grant: CacheGrant
    ) -> dict[str, Any]:
        """Return the configuration, for `Sampler`, of sampler `index` of a session (`spec`)."""
        part, read = self.parts[index % len(self.parts)], self._read_by(index)
        others = {p: asdict(e) for p, e in self.endpoints.items() if p not in read}
        return {
            **self.sampler,
            "part": part,
            "others": sorted({*self.mapped} - {part}),
            "pipeline": spec.pipeline.to_json(),
            "endpoints": others if self.num_parts > 1 else {},
            "timeout": spec.timeout,
            "concurrency": spec.concurrency,
            "cache_bytes": grant.cache_bytes // spec.num_workers,
            "ahead_bytes": grant.ahead_bytes // spec.num_workers,
            "lookahead": spec.lookahead if grant.cache_bytes else (0, 0),
            "device": device,
            "device_arena": None,
        }
