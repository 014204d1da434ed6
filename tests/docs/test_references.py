"""Files and names of khop that documents name exist."""

import importlib
import re
from pathlib import Path

import pytest

from khop.plugins import GROUPS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "kernels/README.md")),
    *(ROOT / "benchmarks").glob("*.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FOLDERS = r"\.ci|\.github|benchmarks|docs|examples|kernels|results|scripts|src|tests"
PATH = re.compile(rf"(?<![\w/.<-])(?:{FOLDERS})/[\w./{{}},*<>-]+")
NAME = re.compile(r"`(khop(?:\.\w+)+)\b")
OPTIONAL = ("khop.lightning",)  # needs a package that may be missing
LINK = re.compile(r"\]\(([\w./-]+)(?:#[\w-]*)?\)")


def alternatives(text):
    """The texts that braces stand for, as in a shell."""
    group = re.search(r"\{([^{}]*)\}", text)
    if group is None:
        return [text]
    begin, end = text[: group.start()], text[group.end() :]
    return [t for word in group[1].split(",") for t in alternatives(begin + word.strip() + end)]


def is_there(path, document):
    """Paths begin at the repository, or beside the document; `*` stands for names."""
    if "<" in path:  # a placeholder: results/<device>.json
        return True
    return any(any(base.glob(path.rstrip("/"))) for base in (ROOT, document.parent))


def resolves(name):
    """Whether a dotted name is a module of khop, or something in one."""
    found, words = importlib.import_module("khop"), name.split(".")
    for depth, word in enumerate(words[1:], 2):
        if not hasattr(found, word):
            try:
                importlib.import_module(".".join(words[:depth]))
            except ModuleNotFoundError:
                return False
        found = getattr(found, word)
    return True


def problems(document, text):
    """What a document names that is not there."""
    found = [
        path
        for match in PATH.finditer(text)
        for path in alternatives(match[0].rstrip(".,"))
        if not is_there(path, document)
    ]
    found += [
        name
        for name in NAME.findall(text)
        if not name.startswith(OPTIONAL) and name not in GROUPS and not resolves(name)
    ]
    links = [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    return found + links


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_is_there(document):
    assert problems(document, document.read_text()) == []


def test_what_is_not_there_is_found():
    page = ROOT / "docs" / "page.md"
    text = (
        "`src/khop/gone.py` and src/khop/{codec,lost}.py, `khop.loader.NeighborLoader`, "
        "`khop.loader.Nothing`, `khop.gone.x` and [a page](gone.md), results/<device>.json"
    )
    assert problems(page, text) == [
        "src/khop/gone.py",
        "src/khop/lost.py",
        "khop.loader.Nothing",
        "khop.gone.x",
        "gone.md",
    ]


def sources():
    """The source of khop and its kernels, texts that go on in the next line joined."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "kernels").rglob("*.[ch]pp")]
    return re.sub(r'"\s*f?"', "", "\n".join(file.read_text() for file in files))


def windows(message, size=3):
    """All runs of so many words; names and numbers among the words differ from case to case."""
    words = message.split()
    return [" ".join(words[i : i + size]) for i in range(max(1, len(words) - size + 1))]


def test_messages_of_the_faq_are_khops():
    """Whoever searches for a message finds it; PyG's own is the exception."""
    terms = re.findall(r"^(`.*)\n: ", (ROOT / "docs" / "faq.md").read_text(), flags=re.MULTILINE)
    messages = [message for term in terms for message in re.findall(r"`([^`]+)`", term)]
    assert len(messages) > 40
    text = sources()
    missing = [m for m in messages if not any(window in text for window in windows(m))]
    assert missing == ["'NeighborSampler' requires either 'pyg-lib' or 'torch-sparse'"]
