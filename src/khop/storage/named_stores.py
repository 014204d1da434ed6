"""Attributes of a partition folder whose rows are not in its files, but in a user's store.

A trainer sends the import path of the function that opens a store to its own samplers and partition
servers. Each process opens the store at its first read. A store that a folder or another machine
names is never opened.
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
"""Function or class at a module's top level, or a `functools.partial` of it (plain arguments)."""


@dataclass(frozen=True)
class StoreKey:
    """Name of an attribute whose rows are in a user's store.

    Attributes:
        level: 'node' or 'edge'.
        type_name: the node type, or the edge type.
        attribute: name of the attribute.
    """

    level: str
    type_name: NodeType | EdgeType
    attribute: str

    def __str__(self) -> str:
        return f"'{self.attribute}' of {self.type_name!r}"


class NamedStore(RowStore):
    """Attribute whose rows are in a user's store, which each process opens at its first read.

    Args:
        key: attribute whose rows the store has.
        opener: function that opens the store.
        num_rows: number of nodes or edges of the type. Row i belongs to original id i.
        stored: dtype and shape of a row as it is stored.
        delivered: dtype and shape of a row in batches.
    """

    def __init__(
        self, key: StoreKey, opener: Opener, num_rows: int, stored: RowFormat, delivered: RowFormat
    ) -> None:
        self.key = key
        self._opener = opener
        self.num_rows, self.stored, self.delivered = num_rows, stored, delivered
        self._opened: tuple[int, RowStore] | None = None

    @classmethod
    def checked(cls, key: StoreKey, opener: Opener, num_rows: int) -> NamedStore:
        """Open a user's store in this process, check it, and return it.

        Args:
            key: attribute whose rows the store has.
            opener: function that opens the store.
            num_rows: number of nodes or edges of the type.

        Raises:
            TypeError: `opener` is no function, or does not return a row store.
            ValueError: the store has another number of rows, or rows that batches cannot have.
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
        storage_dtype(store.delivered.dtype)  # TypeError, which names all dtypes
        named = cls(key, opener, num_rows, _plain(*store.stored), _plain(*store.delivered))
        named._check(store)
        named._opened = os.getpid(), store
        return named

    def _check(self, store: RowStore) -> None:
        count, row = int(store.num_rows), _plain(*store.delivered)
        if (count, row) != (self.num_rows, self.delivered):
            dtype, shape = self.delivered
            raise ValueError(
                f"the store of {self.key} has {count} rows of {row.dtype} {list(row.shape)}, not "
                f"{self.num_rows} of {dtype} {list(shape)}: it must have a row for each original "
                "id, the same in all processes"
            )

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        return self._of_process().read(ids, out)

    def expect(self, ids: Int64Array) -> None:
        self._of_process().expect(ids)

    def _of_process(self) -> RowStore:
        if self._opened is None or self._opened[0] != os.getpid():
            store = self._opener()
            self._check(store)
            self._opened = os.getpid(), store
        return self._opened[1]

    def close(self) -> None:
        """Close the store of this process. The next read opens it again."""
        if self._opened is not None and self._opened[0] == os.getpid():
            self._opened[1].close()
        self._opened = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}

    def to_json(self) -> dict[str, object]:
        """Return the key, the row format and the opener's path and arguments, for `from_json`.

        Raises:
            ValueError: another process cannot import the opener, or its arguments are no JSON.
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
        return {
            "key": [self.key.level, self.key.type_name, self.key.attribute],
            "opener": [module, path, arguments, options],
            "rows": [self.num_rows, self.stored, self.delivered],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> NamedStore:
        """Return a store that `to_json` of this user's trainer described, without opening it.

        Raises:
            RowStoreError: the function's module cannot be imported.
        """
        level, type_name, attribute = content["key"]
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
        return cls(StoreKey(level, name, attribute), opener, num_rows, stored, delivered)


def _plain(dtype: str, shape: Iterable[int]) -> RowFormat:
    return RowFormat(str(dtype), tuple(map(int, shape)))


def _named(module: str, path: str) -> Any:
    """Return the object at a dotted path in a module that is imported. If there is none, None."""
    value: Any = sys.modules.get(module)
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
