"""Registries of what users may add to khop: sources, partitioners, methods, transports, clusters.

Any process; imports no torch. A `Registry` resolves a name to a built-in object, to what an
installed package offers as an entry point of the registry's group, or to `package:Class`.

A plugin is imported only where this process's user names it: in an argument, on the command line
or in an environment variable. Text of a folder, a file or another process is never resolved: it is
compared with what is there already (`Registry.known`). Installing a package is not naming it:
entry points are read when a name is looked for that is not built in, and only the one of that name
is imported.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from khop.errors import PluginError
from khop.log import shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

T = TypeVar("T")

GROUPS = (
    *("khop.cluster_environments", "khop.methods", "khop.partitioners", "khop.sources"),
    "khop.transports",
)
"""Groups of entry points of all registries."""


class Registry(Generic[T]):
    """Names of one kind of plugin, and the objects that they stand for.

    Args:
        group: the group of entry points: 'khop.sources'.
        builtin: {name: object} of khop's own, in the order in which they are tried and listed.
        check: returns what a plugin's object stands for; TypeError if it is not of this kind.
        noun: word for what a name stands for, in error messages: 'layout'.

    Attributes:
        group: as above.
        builtin: as above.
    """

    def __init__(
        self, group: str, builtin: Mapping[str, T], check: Callable[[Any], T], noun: str
    ) -> None:
        self.group, self.builtin = group, builtin
        self._check, self._noun = check, noun
        self._named: dict[str, T] = {}

    def known(self, name: str) -> T | None:
        """Return what a name stands for if it is built in or was named before; imports nothing."""
        return self.builtin.get(name, self._named.get(name))

    def resolve(self, name: str) -> T:
        """Return what a name stands for that this process's user has given.

        Args:
            name: a built-in name, the name of an entry point of the group, or 'package:Class'.

        Raises:
            ValueError: nothing has this name.
            PluginError: it cannot be imported.
            TypeError: it is not of this kind.
        """
        value = self.known(name)
        if value is None:
            value = self._named[name] = self._load(name)
        return value

    def checked(self, value: Any) -> T:
        """Return what an object, or a name, stands for that this process's user has given.

        Raises:
            ValueError, PluginError, TypeError: as `resolve`.
        """
        return self.resolve(value) if isinstance(value, str) else self._check(value)

    def installed(self) -> list[str]:
        """Return the names of installed packages' entry points, sorted; imports none of them."""
        return sorted({entry.name for entry in self._entries()})

    def module_of(self, name: str) -> str | None:
        """Return the module that an installed package's entry point names; imports nothing.

        Args:
            name: as this process's user has given it.

        Returns:
            The module's name; None if no installed package has an entry point of this name.

        Raises:
            PluginError: several packages have one.
        """
        entry = self._installed(name)
        return None if entry is None else entry.module

    def names(self) -> str:
        """Return words that list the names there are."""
        own = ", ".join(self.builtin) or "none built in"
        return f"{own}; of installed packages ({self.group}): {_listed(self.installed())}"

    def _entries(self) -> EntryPoints:
        from importlib.metadata import entry_points  # takes longer to import than all of khop

        return entry_points(group=self.group)

    def _load(self, name: str) -> T:
        entry = self._by_hand(name) if ":" in name else self._installed(name)
        if entry is None:
            close = difflib.get_close_matches(name, [*self.builtin, *self.installed()], n=1)
            meant = f"did you mean '{close[0]}'? " if close else ""
            raise ValueError(
                f"no {self._noun} {shown(name)}: {meant}there are {self.names()}; or name "
                "package:Class"
            )
        try:
            value = entry.load()
        except Exception as error:
            raise PluginError(
                f"{self.group}: cannot import {entry.value!r}{_package_of(entry)}: "
                f"{type(error).__name__}: {error}. Install it where this process runs, or name "
                "the folder that it is in: PYTHONPATH=/absolute/folder"
            ) from error
        try:
            return self._check(value)
        except TypeError as error:
            raise TypeError(f"{self.group}: {entry.value!r}{_package_of(entry)} {error}") from None

    def _installed(self, name: str) -> EntryPoint | None:
        """Return the entry point of a name; None if no installed package has one."""
        entries = {entry.value: entry for entry in self._entries() if entry.name == name}
        if len(entries) > 1:
            raise PluginError(
                f"{self.group}: several installed packages have {shown(name)}: "
                f"{_listed(entries)}. Uninstall all but one, or name package:Class"
            )
        return next(iter(entries.values()), None)

    def _by_hand(self, name: str) -> EntryPoint:
        module, _, path = name.partition(":")
        parts = [*module.split("."), *path.split(".")]
        if not all(part.isidentifier() for part in parts):
            raise ValueError(
                f"{self._noun} {shown(name)} must be written package.module:Class, as in "
                "'my_package.readers:Lance'"
            )
        from importlib.metadata import EntryPoint

        return EntryPoint(name, name, self.group)


def instance_of(base: type[Any]) -> Callable[[Any], Any]:
    """Return a check that takes an instance of a class, or a subclass to make one of."""

    def check(value: Any) -> Any:
        if isinstance(value, type) and issubclass(value, base):
            return value()
        if isinstance(value, base):
            return value
        raise TypeError(f"must be a subclass of {_path_of(base)} (got {_described(value)})")

    return check


def subclass_of(base: type[Any]) -> Callable[[Any], Any]:
    """Return a check that takes a subclass of a class."""

    def check(value: Any) -> Any:
        if isinstance(value, type) and issubclass(value, base):
            return value
        raise TypeError(f"must be a subclass of {_path_of(base)} (got {_described(value)})")

    return check


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _package_of(entry: EntryPoint) -> str:
    return "" if entry.dist is None else f" of package {entry.dist.name}"


def _path_of(base: type[Any]) -> str:
    """Return the public path of one of khop's base classes: two modules and its name."""
    return ".".join([*base.__module__.split(".")[:2], base.__qualname__])


def _described(value: Any) -> str:
    return f"class {value.__qualname__}" if isinstance(value, type) else f"'{type(value).__name__}'"
