"""Checked access to JSON and YAML files that describe a graph. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from khop.data.files import check_regular
from khop.log import shown


class Entry:
    """JSON or YAML object of a graph's description. Each value is checked when it is read.

    Args:
        content: the parsed object.
        name: name of the object and of its file, for errors.

    Raises:
        ValueError: the content is not a dict. Methods raise it for values of a wrong type, too.
    """

    def __init__(self, content: object, name: str) -> None:
        if not isinstance(content, dict):
            raise ValueError(f"{name} must be an object (got '{type(content).__name__}')")
        self.content: dict[Any, Any] = content
        self.name = name

    @classmethod
    def read(
        cls, path: Path, most_bytes: int, parse: Callable[[bytes], object], invalid: type[Exception]
    ) -> Entry:
        """Read a JSON or YAML file as an entry.

        Args:
            path: the file.
            most_bytes: largest accepted size of the file.
            parse: parser of the file's content.
            invalid: exception that `parse` raises for malformed content. It becomes ValueError.
        """
        size = check_regular(path).stat().st_size
        if size > most_bytes:
            raise ValueError(f"'{path}' has {size:,} bytes: no description of a graph has so many")
        try:
            return cls(parse(path.read_bytes()), f"'{path}'")
        except (invalid, RecursionError, UnicodeDecodeError) as error:
            form = "YAML" if path.suffix != ".json" else "JSON"
            raise ValueError(f"'{path}' is no {form}: {error}") from None

    def of(self, key: object) -> str:
        """Return a name of the value at `key`, for errors: "'key' of FILE", for example."""
        return f"'{key}' of {self.name}"

    def entry(self, key: object, optional: bool = False) -> Entry:
        """Return the object at `key`. If it is missing and optional, return an empty one."""
        content = self.content.get(key)
        return Entry({} if optional and not content else content, self.of(key))

    def text(self, key: str) -> str:
        """Return the text at `key`. It must not be empty."""
        value = self.content.get(key)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{self.of(key)} must be a text (got {shown(value)})")
        return value

    def texts(self, key: str) -> list[str]:
        """Return the list of texts at `key`, or an empty list if it is missing."""
        value = self.content.get(key) or []
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ValueError(f"{self.of(key)} must be a list of names (got {shown(value)})")
        return value
