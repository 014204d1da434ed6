"""Registries of plugins: sources, partitioners, methods, transports and cluster environments.

A `Registry` resolves a name to a built-in object, to an entry point of an installed package, in the
registry's group, or to `package:Class`. Any process, no torch.

A plugin is imported only where this process's user names it: in an argument, on the command line
or in an environment variable. A name in a folder, a file or a message is never resolved, only
compared with the names known so far (`Registry.known`). Installing a package imports nothing. For a
name that is not built in, khop reads the entry points and imports the one of this name.
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
    """Plugins of one type by name, such as all readers of graph files.

    Args:
        group: the group of entry points: 'khop.sources'.
        builtin: {name: plugin} of khop's own, in the order in which they are tried and listed.
        check: converts an imported object to a plugin, or raises TypeError.
        noun: word for a plugin in error messages: 'layout'.

    Attributes:
        group: the group of entry points.
        builtin: khop's own plugins by name.
    """

    def __init__(
        self, group: str, builtin: Mapping[str, T], check: Callable[[Any], T], noun: str
    ) -> None:
        self.group, self.builtin = group, builtin
        self._check, self._noun = check, noun
        self._named: dict[str, T] = {}

    def known(self, name: str) -> T | None:
        """Return the plugin `name` if built in or resolved before, else None. Import nothing."""
        return self.builtin.get(name, self._named.get(name))

    def resolve(self, name: str) -> T:
        """Return the plugin of a name, and import it if need be.

        Args:
            name: a built-in name, the name of an entry point of the group, or 'package:Class', from
                this process's user.

        Raises:
            ValueError: there is no plugin of this name.
            PluginError: the plugin cannot be imported.
            TypeError: the imported object is no plugin for this purpose.
        """
        value = self.known(name)
        if value is None:
            value = self._named[name] = self._load(name)
        return value

    def checked(self, value: Any) -> T:
        """Convert an object to a plugin, else raise TypeError. If it is a text, `resolve` it."""
        return self.resolve(value) if isinstance(value, str) else self._check(value)

    def installed(self) -> list[str]:
        """Return the sorted names of plugins in installed packages. None is imported."""
        return sorted({entry.name for entry in self._entries()})

    def module_of(self, name: str) -> str | None:
        """Return the name of an installed plugin's module, and import nothing.

        If no installed package has an entry point of this name, None.

        Raises:
            PluginError: several packages have an entry point of this name.
        """
        entry = self._installed(name)
        return None if entry is None else entry.module

    def names(self) -> str:
        """Return the names of all plugins as one text, for messages."""
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
        """Return the entry point called `name` of an installed package, or None."""
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
    """Return a `check` for `Registry`: it returns an instance of `base`, also for a subclass."""
    subclass = subclass_of(base)
    return lambda value: value if isinstance(value, base) else subclass(value)()


def subclass_of(base: type[Any]) -> Callable[[Any], Any]:
    """Return a `check` for `Registry`: it accepts a subclass of `base`."""

    def check(value: Any) -> Any:
        is_class = isinstance(value, type)
        if is_class and issubclass(value, base):
            return value
        got = f"class {value.__qualname__}" if is_class else f"'{type(value).__name__}'"
        path = ".".join([*base.__module__.split(".")[:2], base.__qualname__])  # the public one
        raise TypeError(f"must be a subclass of {path} (got {got})")

    return check


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _package_of(entry: EntryPoint) -> str:
    return "" if entry.dist is None else f" of package {entry.dist.name}"
