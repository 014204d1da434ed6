"""Descriptions of graphs in JSON or YAML, each entry checked when it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from khop.data.files import check_regular
from khop.log import shown


class Entry:
    """Object of a description.

    Args:
        content: the parsed object.
        name: its name in errors, with the file that has it.

    Raises:
        ValueError: the content is no object. Methods raise it for wrong entries, too.
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
        """Read a file.

        Args:
            path: the file.
            most_bytes: bound of its size.
            parse: parser of its content.
            invalid: the parser's error.
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
        """Return the name of an entry in errors."""
        return f"'{key}' of {self.name}"

    def entry(self, key: object, optional: bool = False) -> Entry:
        """Return an object within this one, empty if it is optional and missing."""
        content = self.content.get(key)
        return Entry({} if optional and not content else content, self.of(key))

    def text(self, key: str) -> str:
        """Return a text that is not empty."""
        value = self.content.get(key)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{self.of(key)} must be a text (got {shown(value)})")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of texts, empty if it is missing."""
        value = self.content.get(key) or []
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ValueError(f"{self.of(key)} must be a list of names (got {shown(value)})")
        return value
