"""What samplers ask partition servers, and how exceptions cross processes."""

from __future__ import annotations

import builtins
from typing import Any

from khop import errors

PROTOCOL = 1

# Exceptions whose constructors want more than a text.
_NOT_TEXT = ("UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup")
_TYPES: dict[str, type[Exception]] = {
    name: kind
    for namespace in (vars(builtins), vars(errors))
    for name, kind in namespace.items()
    if isinstance(kind, type) and issubclass(kind, Exception) and name not in _NOT_TEXT
}


def describe_error(error: BaseException) -> dict[str, str]:
    """An exception as type name and text."""
    return {"type": type(error).__name__, "message": str(error)}


def rebuild_error(described: dict[str, Any], where: str) -> Exception:
    """The same exception, where its type is known by name; else RuntimeError.

    Args:
        described: from `describe_error`; perhaps with a 'traceback'.
        where: the process that it was raised in.
    """
    name, message = str(described.get("type")), str(described.get("message"))
    text = f"{message}\n\nRaised in {where}."
    if described.get("traceback"):
        text += f"\n{described['traceback']}"
    kind = _TYPES.get(name)
    if kind is None:
        return RuntimeError(f"{name}: {text}")
    return kind(text)
