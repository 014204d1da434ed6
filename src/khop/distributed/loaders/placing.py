"""Placement of a loader's samplers and arenas on NUMA nodes. Runs in trainers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import torch

from khop import log
from khop.channel.arena import ArenaReader
from khop.distributed.dataset import DistDataset
from khop.distributed.graph import PartitionedGraph
from khop.distributed.sampling.process_handle import Process, Program, Worker
from khop.numa import topology
from khop.placement import Position, choose, describe, local_pages, prefer, refusals

_log = log.get(__name__)


class LoaderPlacement:
    """Placement of the processes that a loader starts. The trainer itself is not bound.

    Args:
        option: the loader's option `placement`.
        data: the graph, connected.
        device: device of the batches. If None, the CPU.
        num_samplers: number of the loader's samplers.

    Raises:
        ValueError: the option is malformed, or names a node or cores that cannot be used.
    """

    def __init__(
        self,
        option: str | None,
        data: PartitionedGraph,
        device: torch.device | None,
        num_samplers: int,
    ) -> None:
        machine = topology()
        self._is_shown = len(machine.nodes) > 1
        position = _position(data)._replace(gpu=_pci_address(device))
        self.placement = choose(option, position, machine, num_samplers)
        self._refused: list[str] = []
        if self.placement is not None:
            self._is_shown = True
            self._note(refusals(self.placement))

    def starting(self, program: Callable[..., Process]) -> Program:
        """Return a factory that starts a program's processes at the loader's node."""
        return program if self.placement is None else partial(program, placement=self.placement)

    def preparing(self, pin: Callable[[ArenaReader], None] | None) -> Callable[[ArenaReader], None]:
        """Return a function for new arenas: their memory is at the node, and `pin` is called."""

        def prepare(arena: ArenaReader) -> None:
            node = None if self.placement is None else self.placement.node
            if refused := prefer(arena.address, arena.capacity, node):
                self._note([refused])
            if pin is not None:
                pin(arena)

        return prepare

    def described(self, workers: Sequence[Worker]) -> dict[str, str]:
        """Return nodes, cores and memory policy of the trainer and the samplers, and what failed.

        With a preferred node, also the share of their pages there. Empty on a machine with one
        node, unless the user has set a placement.
        """
        if not self._is_shown:
            return {}
        node = None if self.placement is None else self.placement.node
        texts: dict[str, str] = {}
        for name, pids in (("trainer", ["self"]), ("samplers", [w.pid for w in workers])):
            known = dict.fromkeys(map(describe, pids))
            pages = "" if node is None else local_pages(node, pids)
            texts[name] = ", ".join(filter(None, ("; ".join(filter(None, known)), pages)))
        texts["refused"] = "; ".join(self._refused)
        return {name: text for name, text in texts.items() if text}

    def _note(self, refused: Sequence[str]) -> None:
        new = [text for text in refused if text not in self._refused]
        self._refused += new
        if new:
            _log.info("placement-refused", f"the system refuses {'; '.join(new)}", calls=new)


def _position(data: PartitionedGraph) -> Position:
    """Return this trainer's position among the trainers of its machine."""
    if not isinstance(data, DistDataset):
        return Position.of(os.environ)
    hosts = [claim.host for claim in data.service().claims]
    rank = data.context.rank
    return Position(hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank]))


def _pci_address(device: torch.device | None) -> str | None:
    """Return the PCI address of a GPU, as Linux writes it. None if it is no GPU, or unknown."""
    if device is None or device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    if not hasattr(properties, "pci_domain_id"):  # torch before 2.8
        return None
    domain, bus, slot = (getattr(properties, f"pci_{n}_id") for n in ("domain", "bus", "device"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"
