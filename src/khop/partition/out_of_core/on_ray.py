"""Partitioning on the machines of a Ray cluster: steps of `RowWriter` and `NodeWriter` as tasks.

    started process     assigns nodes, numbers them, adds up counts, writes maps and meta.json
    tasks that count    a share of the edges                -> edges of each row
    tasks that split    a piece of the edges                -> its edges of each block, as objects
    tasks that write    a part's blocks, or nodes of a part -> files of the folder

Tasks map the input's files, on storage that the machines share, and write the folder there. What
they need besides (new ids, row pointers, edges that are in memory) is one object, which each
machine gets once. Blocks go from task to task through Ray's object stores. A task that ends with
its machine, or for want of memory, is run again by Ray, and so are those whose objects were lost:
tasks are functions of their arguments, and files get their names once they are complete.

Imports Ray when it is used, and no torch.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from khop._version import __version__
from khop.errors import TaskDiedError
from khop.partition.out_of_core.engines import check_engine, cluster_address
from khop.partition.out_of_core.object_stage import ObjectStage
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.stage import SplitPiece, Stage
from khop.partition.out_of_core.workspace import Columns, Item, Result, Workspace
from khop.storage.folder import ArrayWriter, AttemptWriter, Written
from khop.typing import Int64Array

# Bytes that a task takes for edges, unless the user says how many.
_TASK_MEMORY = 1 << 30
# Tasks that write wait for blocks and reserve no CPU: where a machine is lost, the tasks that split
# its blocks again would wait for theirs (seen with Ray 2.60).
_WRITING: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
# How long tasks are waited for that are no longer needed.
_CANCEL_SECONDS = 30
# Tasks that count return a number for each row.
_MOST_COUNTERS = 16


class RayWorkspace(Workspace):
    """Workspace whose steps are tasks of a Ray cluster, which this process joins.

    Args:
        on: 'ray', or 'ray:ADDRESS'; see `khop.partition.out_of_core.engines`.
        memory: bytes that a task takes for edges. If None, 1 GB.
        jobs: tasks at a time. If None, one for each CPU of the cluster.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ValueError: nothing names the cluster.
        ConnectionError: there is none at its address.
    """

    stages_attrs = True
    releases_pages = True

    def __init__(self, on: str, memory: int | None = None, jobs: int | None = None) -> None:
        super().__init__(Resources(memory or _TASK_MEMORY, 1))
        self._ray, self._joined = _join(on)
        self._jobs = jobs or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the cluster, unless the user had joined it; tasks under way are ended."""
        if self._joined:
            self._ray.shutdown()

    @property
    def counters(self) -> int:
        """Number of tasks that count edges."""
        return min(self._jobs, _MOST_COUNTERS)

    @contextlib.contextmanager
    def stage(self, key: str, columns: Columns, places: Int64Array) -> Iterator[Stage]:
        """Open the stage of an edge type, in Ray's object stores."""
        del key
        yield ObjectStage(columns, places, {block: [] for block in range(len(places) - 1)})

    def in_order(
        self, function: Callable[[Workspace, Item], Result], items: Sequence[Item]
    ) -> Iterator[Result]:
        """Yield the results of a function, in the order of items."""
        with self._run(_result, "count", function, items) as running:
            for _, reference in running:
                yield self._get(reference)

    def fill(
        self,
        stage: Stage,
        split: Callable[[Workspace, Item], SplitPiece],
        items: Sequence[Item],
    ) -> Iterator[int]:
        """Keep the blocks of a function's results as objects; yield bytes of each result."""
        assert isinstance(stage, ObjectStage)
        with self._run(_blocks, "split", split, items, 1 + stage.num_blocks) as running:
            for _, (nbytes, *blocks) in running:
                stage.keep(blocks)
                yield self._get(nbytes)

    def write(
        self,
        function: Callable[[ArrayWriter, Workspace, Item], Iterable[Result]],
        items: Iterable[Item],
        take: Callable[[Item, Result], None] = lambda item, result: None,
    ) -> Iterator[Item]:
        """Run a function that writes files of the folder; yield each item once it is written."""
        files = partial(_files, self._writer.shared())
        with self._run(files, "write", function, items, **_WRITING) as running:
            for item, reference in running:
                results, written = self._get(reference)
                self._writer.take(written)
                for result in results:
                    take(item, result)
                yield item

    @contextlib.contextmanager
    def _run(
        self,
        body: Callable[..., Any],
        name: str,
        function: Callable[..., Any],
        items: Iterable[Item],
        num_returns: int = 1,
        **options: Any,
    ) -> Iterator[Iterator[tuple[Item, Any]]]:
        """Iterate over items and references to what their tasks return; end those that are left.

        Args:
            body: calls `function` in a task.
            name: of the tasks, for Ray's tools.
            function: goes to the cluster once, for all tasks.
            items: one for each task.
            num_returns: objects that a task returns.
            **options: further options of a task of Ray's.
        """
        options |= {"num_returns": num_returns, "name": f"khop {name}"}
        task = self._ray.remote(_task).options(**options)
        # In a list, so that a process gets the function once, not for each of its tasks.
        call = __version__, body, [self._ray.put(function)], self.resources.memory
        waiting: deque[tuple[Item, Any]] = deque()

        def running() -> Iterator[tuple[Item, Any]]:
            for item in items:
                waiting.append((item, task.remote(*call, item)))
                if len(waiting) == self._jobs:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()

        try:
            yield running()
        finally:
            left = [one if num_returns == 1 else one[0] for _, one in waiting]
            for reference in left:
                self._ray.cancel(reference)
            if left:  # what they write is removed then
                self._ray.wait(left, num_returns=len(left), timeout=_CANCEL_SECONDS)

    def _get(self, reference: Any) -> Any:
        """Return an object; raise what its task raised."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            cause: BaseException = error
            while isinstance(cause, self._ray.exceptions.RayTaskError):
                cause = cause.cause
            raise cause from error
        except self._ray.exceptions.RayError as error:
            raise TaskDiedError(
                "a task of partitioning ended, with its machine or for want of memory, more often "
                f"than Ray runs it again ({type(error).__name__}): lower --memory or --jobs, or "
                "see the cluster's logs"
            ) from error


class _TaskWorkspace(Workspace):
    """Workspace of a task: one thread."""

    stages_attrs = True
    releases_pages = True


def _task(
    version: str,
    body: Callable[..., Any],
    function: list[Any],
    memory: int,
    item: Any,
) -> Any:
    """Call `body` with a function, which is an object of Ray's; a task, in a process of Ray's."""
    if version != __version__:
        raise RuntimeError(
            f"machine {socket.gethostname()} has khop {__version__}, but partitioning was started "
            f"by {version}: install one version on all machines"
        )
    return body(_fetched(*function), _TaskWorkspace(Resources(memory, 1)), item)


_latest: tuple[Any, Any] = (None, None)


def _fetched(reference: Any) -> Any:
    """Return an object; it is read once for the tasks that a process runs with it."""
    global _latest  # noqa: PLW0603
    if _latest[0] != reference:
        import ray

        _latest = reference, ray.get(reference)
    return _latest[1]


def _result(function: Callable[..., Any], workspace: Workspace, item: Any) -> Any:
    return function(workspace, item)


def _blocks(split: Callable[..., SplitPiece], workspace: Workspace, item: Any) -> tuple[Any, ...]:
    """Return bytes and the columns of each block of a piece; None for blocks without edges."""
    piece = split(workspace, item)
    blocks = dict(piece.blocks())
    return piece.nbytes, *(blocks.get(block) for block in range(len(piece.counts)))


def _files(
    folder: Path, function: Callable[..., Iterable[Any]], workspace: Workspace, item: Any
) -> tuple[list[Any], dict[str, Written]]:
    """Return the results of a function that writes files, and what is known of these."""
    with AttemptWriter(folder) as writer:
        return list(function(writer, workspace, item)), writer.written


def _join(on: str) -> tuple[Any, bool]:
    """Return module `ray`, and whether its cluster was joined just now."""
    check_engine(on)
    import ray

    if ray.is_initialized():
        return ray, False
    address = cluster_address(on)
    # Ray takes SIGTERM to itself, which `khop partition` cleans up at.
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main else None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise ConnectionError(
            f"no Ray cluster is reached at '{address}': `ray start --head` starts one, at the "
            "address that it prints, to which other machines are added by `ray start "
            f"--address=THIS_MACHINE:6379` ({error})"
        ) from None
    if handler is not None:
        signal.signal(signal.SIGTERM, handler)
    return ray, True
