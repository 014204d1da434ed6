"""Word rules of the project: checks docstrings, comments, names and pages against them.

`python tests/support/words.py [paths]` prints findings, one per line.
`tests/architecture/test_words.py` expects none. CONTRIBUTING.md has the rules with their reasons.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LONGEST = 25
"""Most words of a sentence; a code span, a link's target and a number count as one."""

BANNED = {
    r"ow(?:es?|ed|ing)": "is due, is missing",
    r"bur(?:y|ies|ied)": "discards, reaps",
    r"hear(?:s|d|ing)?": "receives",
    r"tell(?:s|ing)?|told": "reports, states, sends",
    r"last words": "final message",
    r"nonsense": "malformed",
    r"slabs?": "arena",
    r"house|wings?": "package",
    r"nobody|anybody|somebody": "no process, any user",
    r"as it were|so to speak": "(leave out)",
}
UNITS = (
    r"nodes?|seeds?|edges?|rows?|bytes?|batches|neighbou?rs?|requests?|times|once|twice|ms|us|ns|GB|MB|kB|KB|B|"
    r"GiB|MiB|KiB|microseconds?|milliseconds?|nanoseconds?|seconds?|minutes?|calls?|lists?|threads?|"
    r"samplers?|process(?:es)?|parts?|copies|copy|messages?|floats?|values?|files?|folders?|draws|"
    r"lines?|sockets?|servers?|workers?|trainers?|words?|numbers?|one|two|three|four|five|few|many|most"
)
PER = (
    r"batch|second|edge|node|hop|seed|layer|part|partition|epoch|row|thread|process|machine|list|type|"
    r"step|request|message|sampler|trainer|worker|column|host|server|GPU|job|minute|hour|day|loader|"
    r"call|graph|block|window|round|key|client"
)
RULES = (
    *(
        (re.compile(rf"\b(?:{word})\b", re.IGNORECASE), f"banned word ({instead})")
        for word, instead in BANNED.items()
    ),
    (re.compile(rf"\b(?:{UNITS}) an? (?:{PER})\b", re.IGNORECASE), "'a' for 'per'"),
    (re.compile(r"\bthose (?:of|that|who|whose|which)\b", re.IGNORECASE), "'those' without a noun"),
    (re.compile(r"\bthat of\b", re.IGNORECASE), "'that of' without a noun"),
    (re.compile(r";(?=\s|$)"), "semicolon in running text"),
)
PRONOUNS = {
    "it",
    "its",
    "that",
    "such",
    "this",
    "these",
    "they",
    "their",
    "those",
    "there",
    "he",
    "his",
}
QUESTIONS = {"what", "where", "when", "who", "whom", "whose", "which", "why", "how", "whether"}
NAMES = {
    *("place", "places", "kind", "kinds", "what", "given", "number", "found", "wanted", "may"),
    *("ours", "say", "tell", "hear", "owe", "owed", "heard", "told", "said", "slab", "picture"),
}
PUBLISHED = {
    ("feature.py", "places"),
    ("row_store.py", "places"),
    ("device_feature.py", "place"),
    ("process_handle.py", "number"),
}
"""Names of version 0.2 that users' code has: a module and the name."""
_NO_PROSE = ("|", "#", ">>>", "...", "<", ":::", "%", "@")
CONNECTIONS = ("rpc", "remote", "channel", "membership")
"""Packages in which a *link* would be a connection: an edge to predict has that word."""


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def plain(text: str) -> str:
    """Return text where each code span, address and markup counts as one word."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(\{[a-z:]+\})?``[^`]+``|(\{[a-z:]+\})?`[^`]+`", "CODE", text)
    return re.sub(r"https?://\S+", "CODE", text)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a paragraph, each with the offset of its first character."""
    start = 0
    for end in re.finditer(r"(?<=[a-zA-Z0-9)`'\"*])[.!?:](?=\s+[A-Z`*\"(]|\s*$)|:\s", text):
        yield start, text[start : end.end()]
        start = end.end()
    if text[start:].strip():
        yield start, text[start:]


def check_text(path: Path, line: int, paragraph: str) -> Iterator[Finding]:
    text = plain(paragraph)
    for pattern, rule in RULES:
        for match in pattern.finditer(text):
            near = text[max(match.start() - 25, 0) : match.end() + 15].replace("\n", " ")
            yield Finding(path, line + text[: match.start()].count("\n"), rule, near)
    for start, sentence in sentences(text):
        words = re.findall(r"[\w'.,%/-]*\w[\w'%/-]*", sentence)
        if len(words) > LONGEST:
            where = line + text[:start].count("\n")
            yield Finding(path, where, f"sentence of {len(words)} words", " ".join(words[:6]))


def paragraphs(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Yield paragraphs of running text with their first lines, without code, tables, headings."""
    block: list[str] = []
    start = first
    fenced = False
    indent_of_code: int | None = None
    for line, content in enumerate([*text.splitlines(), ""], first):
        stripped = content.strip()
        indent = len(content) - len(content.lstrip())
        if stripped.startswith(("```", "~~~")):
            fenced = not fenced
            stripped = ""
        elif fenced:
            stripped = ""
        if indent_of_code is not None:
            if stripped and indent <= indent_of_code:
                indent_of_code = None
            else:
                stripped = ""
        item = re.match(r"(?:[-*+]|\d+\.) +|[\w*`., ]{1,60}: ", stripped)
        directive = stripped.startswith(_NO_PROSE) or stripped.endswith(")=")
        if not stripped or directive:
            if block:
                yield start, "\n".join(block)
            block = []
            continue
        if item and block:
            yield start, "\n".join(block)
            block = []
        if not block:
            start = line
        block.append(re.sub(r"^(?:[-*+]|\d+\.) +", "", stripped))
        if stripped.endswith("::"):
            indent_of_code = indent
    if block:
        yield start, "\n".join(block)


def check_page(path: Path) -> Iterator[Finding]:
    for line, paragraph in paragraphs(path.read_text(), 1):
        yield from check_text(path, line, paragraph)


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield node.lineno, name
            case _:
                pass


def check_module(path: Path) -> Iterator[Finding]:
    source = path.read_text()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield from check_docstring(path, statement.lineno, text, statement is body[0])
                case _:
                    pass
    for line, content in enumerate(source.splitlines(), 1):
        if content.strip().startswith("# ") and "type:" not in content and "noqa" not in content:
            for pattern, rule in RULES:
                if match := pattern.search(plain(content)):
                    yield Finding(path, line, rule, match.group())
    banned = NAMES | ({"link"} if any(part in CONNECTIONS for part in path.parts) else set())
    for line, name in sorted(set(names(tree))):
        if name.strip("_") in banned and (path.name, name) not in PUBLISHED:
            yield Finding(path, line, "vague name", name)


def check_docstring(path: Path, line: int, text: str, opening: bool) -> Iterator[Finding]:
    words = text.split()
    first = words[0].strip("\"'`,.:").lower() if words else ""
    if first in PRONOUNS or (opening and first in QUESTIONS):
        yield Finding(
            path, line, "docstring begins with a pronoun or a question", " ".join(words[:6])
        )
    for start, paragraph in paragraphs(text, line):
        yield from check_text(path, start, paragraph)


def check(paths: list[Path]) -> list[Finding]:
    found = []
    for root in paths:
        files = [root] if root.is_file() else [*root.rglob("*.py"), *root.rglob("*.md")]
        for path in sorted(files):
            found += list(check_module(path) if path.suffix == ".py" else check_page(path))
    return found


if __name__ == "__main__":
    findings = check(
        [Path(name) for name in sys.argv[1:]] or [REPOSITORY / "src/khop", REPOSITORY / "docs"]
    )
    for finding in findings:
        print(finding)
    print(len(findings), "findings", file=sys.stderr)
    sys.exit(bool(findings))
