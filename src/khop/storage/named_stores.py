"""Row stores that a user names in place of an attribute's files.

A trainer sends its own processes, samplers and partition servers, where the function is that opens
a store; each opens it when it first reads from it. No folder and no other machine names a store.
Imports no torch.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from khop.data import RowFormat, RowStore
from khop.data.arrays import storage_dtype
from khop.data.tickets import Ticket
from khop.errors import RowStoreError
from khop.log import shown
from khop.typing import Array, EdgeType, Int64Array, NodeType

Opener = Callable[[], RowStore]
"""Function of a module, class of a module, or `functools.partial` of one with plain arguments."""


@dataclass(frozen=True)
class StoreKey:
    """Attribute whose rows a store has.

    Attributes:
        kind: 'node' or 'edge'.
        type_name: the node type, or the edge type.
        attribute: its name.
    """

    kind: str
    type_name: NodeType | EdgeType
    attribute: str

    def __str__(self) -> str:
        return f"'{self.attribute}' of {self.type_name!r}"


class NamedStore(RowStore):
    """Store that each process opens when it first reads from it.

    Args:
        key: its attribute.
        opener: opens it.
        num_rows: number of rows: of all nodes or edges of the type, by original id.
        stored: dtype and shape of a row as it is stored.
        delivered: dtype and shape of a row as batches have it.
    """

    def __init__(
        self,
        key: StoreKey,
        opener: Opener,
        num_rows: int,
        stored: RowFormat,
        delivered: RowFormat,
    ) -> None:
        self.key = key
        self._opener = opener
        self.num_rows, self.stored, self.delivered = num_rows, stored, delivered
        self._opened: tuple[int, RowStore] | None = None

    @classmethod
    def checked(cls, key: StoreKey, opener: Opener, num_rows: int) -> NamedStore:
        """Open a store in this process, and take its format from it.

        Raises:
            TypeError: no function, or it opens something else than a row store.
            ValueError: it has another number of rows, or rows that batches cannot have.
        """
        if isinstance(opener, RowStore) or not callable(opener):
            raise TypeError(
                f"the store of {key} must be a function that opens it, which each process calls "
                f"(got {shown(opener)}): pass functools.partial(MyStore, 'a path')"
            )
        store = opener()
        if not isinstance(store, RowStore):
            raise TypeError(
                f"the store of {key} must be a khop.data.RowStore (got '{type(store).__name__}')"
            )
        storage_dtype(store.delivered.dtype)  # names the dtypes that there are
        named = cls(key, opener, num_rows, _plain(*store.stored), _plain(*store.delivered))
        named._check(store)
        named._opened = os.getpid(), store
        return named

    def _check(self, store: RowStore) -> None:
        found = int(store.num_rows), *_plain(*store.delivered)
        expected = self.num_rows, *self.delivered
        if found != expected:
            raise ValueError(
                f"the store of {self.key} has {found[0]} rows of {found[1]} {list(found[2])}, not "
                f"{expected[0]} of {expected[1]} {list(expected[2])}: it must have a row for each "
                "original id, the same in all processes"
            )

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        """Read rows; see `RowStore.read`."""
        return self._here().read(ids, out)

    def _here(self) -> RowStore:
        """Return the store of this process."""
        if self._opened is None or self._opened[0] != os.getpid():
            store = self._opener()
            self._check(store)
            self._opened = os.getpid(), store
        return self._opened[1]

    def close(self) -> None:
        """Close the store of this process; it is opened again if it is read."""
        if self._opened is not None and self._opened[0] == os.getpid():
            self._opened[1].close()
        self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process opens it by."""
        return {**self.__dict__, "_opened": None}

    def to_json(self) -> dict[str, Any]:
        """Return what another process of this user opens it by, for `from_json`.

        Raises:
            ValueError: another process cannot import the function, or its arguments are no JSON.
        """
        function, arguments, options = self._opener, [], {}
        if isinstance(function, functools.partial):
            arguments, options = [*function.args], function.keywords
            function = function.func
        module, path = function.__module__, function.__qualname__
        if module in ("__main__", "__mp_main__") or _named(module, path) is not function:
            raise ValueError(
                f"the store of {self.key} is opened by {path} of {module}, which sampler processes "
                "cannot import: put it into a module, at the top level of a .py file, and import "
                "it from there"
            )
        try:
            is_plain = json.loads(json.dumps([arguments, options])) == [arguments, options]
        except (TypeError, ValueError):
            is_plain = False
        if not is_plain:
            raise ValueError(
                f"the store of {self.key} is opened with arguments that are not texts, numbers, "
                f"lists or dictionaries of these (got {shown([arguments, options])})"
            )
        kind, type_name, attribute = vars(self.key).values()
        return {
            "key": [kind, type_name, attribute],
            "opener": [module, path, arguments, options],
            "rows": [self.num_rows, self.stored, self.delivered],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> NamedStore:
        """Return a store by what `to_json` of this user's trainer returned; nothing is opened.

        Raises:
            RowStoreError: the function is not found.
        """
        kind, type_name, attribute = content["key"]
        name = type_name if isinstance(type_name, str) else tuple(type_name)
        module, path, arguments, options = content["opener"]
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise RowStoreError(
                f"the module '{module}', which opens the store of '{attribute}', cannot be "
                f"imported: {error}"
            ) from error
        opener = functools.partial(_named(module, path), *arguments, **options)
        num_rows, *formats = content["rows"]
        stored, delivered = (_plain(*each) for each in formats)
        return cls(StoreKey(kind, name, attribute), opener, num_rows, stored, delivered)


def _plain(dtype: str, shape: Iterable[int]) -> RowFormat:
    return RowFormat(str(dtype), tuple(map(int, shape)))


def _named(module: str, path: str) -> Any:
    """Return what is at a path of names in a module that is imported; None if nothing is."""
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
