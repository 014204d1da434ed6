"""Partitioning on the machines of a Ray cluster: steps of `khop.partition.writing` are tasks.

The steps are::

    user's process      assigns nodes, numbers them, adds up counts, writes maps and meta.json
    tasks that count    a share of the edges                -> edges of each row
    tasks that split    a piece of the edges                -> its edges of each block, as objects
    tasks that write    a part's blocks, or nodes of a part -> files of the folder

Tasks map the input's files, on storage that the machines share, and write the folder there. Their
other arguments (new ids, row pointers, edges in memory) are one object, which each machine gets
once. Blocks go from task to task through Ray's object stores. Ray repeats a task if its machine is
lost, if memory runs out, or if its objects are lost. That is safe: tasks are functions of their
arguments, and files get their names once they are complete.

Imports Ray when it is used, and no torch.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from khop._version import __version__
from khop.errors import TaskDiedError
from khop.partition.out_of_core.engines import check_engine, cluster_address
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.stage import SplitPiece, Stage
from khop.partition.out_of_core.workspace import Columns, Item, Result, Workspace
from khop.storage.folder import ArrayWriter, AttemptWriter, Written
from khop.typing import Array, Int64Array

# Default of the bytes that a task takes for edges.
_TASK_MEMORY = 1 << 30
# Tasks that write wait for blocks and reserve no CPU. If a machine is lost, the tasks that split
# its blocks again would wait for these CPUs (observed with Ray 2.60).
_WRITING: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
# Longest wait for tasks that have been cancelled.
_CANCEL_SECONDS = 30
# Each task that counts returns an integer per row, so there are few.
_MOST_COUNTERS = 16


class ObjectStage(Stage):
    """Edges of one type on a Ray cluster, split by blocks (ranges of rows) until they are sorted.

    `columns` are {name: (dtype, shape of a row)}. `starts` [num_blocks + 1] has the first edge of
    each block. `references` are {block: a reference to one object per piece of the edge list}. The
    object is None if the piece has no edge in the block.
    """

    def __init__(
        self, columns: Columns, starts: Int64Array, references: Mapping[int, list[Any]]
    ) -> None:
        super().__init__({}, starts)
        self.num_blocks = len(starts) - 1
        self._rows, self._references = columns, references
        self._held: tuple[int, list[Mapping[str, Array]]] = -1, []

    def keep(self, blocks: Sequence[Any]) -> None:
        """Add a piece of the edge list: `blocks` has one Ray reference per block."""
        for block, reference in enumerate(blocks):
            self._references[block].append(reference)

    def of(self, blocks: range) -> ObjectStage:
        chosen = {block: self._references[block] for block in blocks}
        return ObjectStage(self._rows, self._starts, chosen)

    def read(self, block: int, name: str) -> Array:
        """Return column `name` of a block's edges. Memory is freed when another block is read."""
        import ray

        if self._held[0] != block:
            self._held = -1, []
            pieces = ray.get(self._references[block])
            self._held = block, [piece for piece in pieces if piece is not None]
        dtype, shape = self._rows[name]
        rows = [piece[name] for piece in self._held[1]]
        return np.concatenate(rows) if rows else np.empty((0, *shape), dtype)


class RayWorkspace(Workspace):
    """Storage and execution of a partitioner's steps on a Ray cluster, as Ray tasks.

    This process joins the cluster, as a context manager.

    Args:
        on: 'ray' or 'ray:ADDRESS', see `khop.partition.out_of_core.engines`.
        memory: bytes that a task takes for edges. If None, 1 GiB.
        jobs: tasks at a time. If None, one per CPU of the cluster.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ValueError: the cluster has no address.
        ConnectionError: there is no cluster at its address.
    """

    stages_attrs = True
    releases_pages = True

    def __init__(self, on: str, memory: int | None = None, jobs: int | None = None) -> None:
        super().__init__(Resources(memory or _TASK_MEMORY, 1))
        self._ray, self._joined = _join(on)
        self._jobs = jobs or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def __exit__(self, *error: object) -> None:
        """Leave the cluster, unless the user had joined it before. Leaving ends running tasks."""
        if self._joined:
            self._ray.shutdown()

    @property
    def counters(self) -> int:
        return min(self._jobs, _MOST_COUNTERS)

    @contextlib.contextmanager
    def stage(self, key: str, columns: Columns, starts: Int64Array) -> Iterator[Stage]:
        del key
        yield ObjectStage(columns, starts, {block: [] for block in range(len(starts) - 1)})

    def in_order(
        self, function: Callable[[Workspace, Item], Result], items: Sequence[Item]
    ) -> Iterator[Result]:
        with self._run(_result, "count", function, items) as running:
            for _, reference in running:
                yield self._get(reference)

    def fill(
        self, stage: Stage, split: Callable[[Workspace, Item], SplitPiece], items: Sequence[Item]
    ) -> Iterator[int]:
        """Run a task per piece of the edge list, which splits it. Yield the bytes of each piece.

        Args:
            stage: gets references to the split edges. The edges stay in Ray's object stores.
            split: called in a task with the workspace and an item.
            items: one for each piece.
        """
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
        body: Callable[..., object],
        name: str,
        function: Callable[..., object],
        items: Iterable[Item],
        num_returns: int = 1,
        **options: Any,
    ) -> Iterator[Iterator[tuple[Item, Any]]]:
        """Run a Ray task per item. The iterator yields each item with references to its results.

        Tasks that still run at exit are cancelled.

        Args:
            body: calls `function` in a task.
            name: name of the tasks, for Ray's tools.
            function: called by `body`. It is sent to the cluster once, for all tasks.
            items: one for each task.
            num_returns: objects that a task returns.
            **options: further options of Ray's tasks.
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
            if left:  # their files are removed meanwhile
                self._ray.wait(left, num_returns=len(left), timeout=_CANCEL_SECONDS)

    def _get(self, reference: Any) -> Any:
        """Return the object of a Ray reference. An error of its task is raised here."""
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


def _task(
    version: str, body: Callable[..., Any], function: list[Any], memory: int, item: object
) -> Any:
    """Ray task: call `body` with an item, after a check that khop has the same version here.

    Args:
        version: version of khop in the user's process.
        body: calls the function.
        function: Ray reference of the function, in a list, so that Ray does not fetch it.
        memory: bytes of memory for edges.
        item: argument of the function.
    """
    if version != __version__:
        raise RuntimeError(
            f"machine {socket.gethostname()} has khop {__version__}, but partitioning was started "
            f"by {version}: install one version on all machines"
        )
    workspace = Workspace(Resources(memory, 1))
    workspace.stages_attrs = workspace.releases_pages = True
    return body(_fetched(*function), workspace, item)


_latest: tuple[Any, Any] = (None, None)


def _fetched(reference: Any) -> Any:
    """Return the object of a Ray reference. The latest one stays in memory for the next task."""
    global _latest  # noqa: PLW0603
    if _latest[0] != reference:
        import ray

        _latest = reference, ray.get(reference)
    return _latest[1]


def _result(
    function: Callable[[Workspace, Item], Result], workspace: Workspace, item: Item
) -> Result:
    return function(workspace, item)


def _blocks(
    split: Callable[[Workspace, Item], SplitPiece], workspace: Workspace, item: Item
) -> tuple[object, ...]:
    """Split a piece of the edge list by blocks of rows, in a Ray task.

    Returns:
        The piece's bytes, then for each block its columns by name, or None if it has no edges.
    """
    piece = split(workspace, item)
    blocks = dict(piece.blocks())
    return piece.nbytes, *(blocks.get(block) for block in range(len(piece.counts)))


def _files(
    folder: Path,
    function: Callable[[ArrayWriter, Workspace, Item], Iterable[Result]],
    workspace: Workspace,
    item: Item,
) -> tuple[list[Result], dict[str, Written]]:
    """Call a function that writes files of the folder, in a Ray task.

    Returns:
        The results of the function, and {path: length and digests} of the files.
    """
    with AttemptWriter(folder) as writer:
        return list(function(writer, workspace, item)), writer.written


def _join(on: str) -> tuple[Any, bool]:
    """Join a Ray cluster. Return module `ray`, and False if this process had joined before."""
    check_engine(on)
    import ray

    if ray.is_initialized():
        return ray, False
    address = cluster_address(on)
    # Ray replaces the handler of SIGTERM, by which `khop partition` cleans up.
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
