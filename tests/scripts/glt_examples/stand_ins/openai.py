"""Stand-in for a language model behind a network: its answer is the length of the question."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class OpenAI:
    """Client whose `chat.completions.create` answers at once."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=self)

    def create(self, messages: list[dict[str, Any]], model: str) -> Any:
        """Return an answer of the form that the service has."""
        answer = f"{model} read {len(messages[0]['content'])} letters"
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=answer))])
