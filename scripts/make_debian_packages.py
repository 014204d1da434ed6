"""Make the snapshot that `khop.datasets.DebianPackages` loads.

Run on a Debian 12 machine whose package sources name Debian 12's archive, after `apt-get update`:

    python scripts/make_debian_packages.py src/khop/datasets/snapshot/debian-12.npz

The index is read from `apt-cache dumpavail`, or from a file that holds its output (`--index`). The
steps: parse the index, keep one version of each package of Debian 12 main, resolve the relations
between packages to edges, and reduce the one-line descriptions to TF-IDF term lists with the first
right singular vectors of the whole TF-IDF matrix. Two runs on one index give the same arrays.

Needs scipy, which khop itself does not.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

# The position is the code of the kind; the strongest relation comes first, because it is the one
# that is kept where two packages are related in several ways.
EDGE_KINDS = {
    "pre_depends": "Pre-Depends",
    "depends": "Depends",
    "recommends": "Recommends",
    "suggests": "Suggests",
    "enhances": "Enhances",
}
MAIN_POOLS = ("pool/main/", "pool/updates/main/")
NUM_COMPONENTS = 128
MIN_DOCUMENTS = 3
TRAIN_SHARE, VAL_SHARE = 0.6, 0.2

Stanza = dict[str, str]
Arrays = dict[str, npt.NDArray[np.generic]]


def main() -> None:
    """Read the index, make the arrays, write the snapshot and print what is in it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, help="the .npz file to write")
    parser.add_argument("--index", type=Path, help="output of apt-cache dumpavail, kept in a file")
    args = parser.parse_args()

    packages = select_main(parse_index(read_index(args.index)))
    arrays = package_arrays(packages) | edge_arrays(packages) | text_arrays(packages)
    with args.output.open("wb") as file:
        np.savez_compressed(file, **arrays)
    for name, array in arrays.items():
        print(f"{name:20} {array.dtype!s:8} {array.shape}")
    print(f"{args.output}: {args.output.stat().st_size / 1e6:.2f} MB")


def read_index(path: Path | None) -> str:
    """Return the text of the package index, from `path` or from apt."""
    if path is not None:
        return path.read_text(encoding="utf-8")
    # Without the status file, what happens to be installed on this machine plays no part.
    command = ["apt-cache", "-o", "Dir::State::status=/dev/null", "dumpavail"]
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout


def parse_index(text: str) -> Iterator[Stanza]:
    """Yield the stanzas of an index in deb822 form; folded values keep their line feeds."""
    for block in text.split("\n\n"):
        stanza: Stanza = {}
        field = ""
        for line in filter(None, block.split("\n")):  # splitlines() would cut at Unicode separators
            if line[:1] in (" ", "\t"):
                stanza[field] += "\n" + line.strip()
            else:
                field, _, value = line.partition(":")
                stanza[field] = value.strip()
        if stanza:
            yield stanza


def select_main(stanzas: Iterable[Stanza]) -> list[Stanza]:
    """Keep Debian main, one stanza a package, in order of the package names.

    apt lists one version a package, the candidate; where an index has several, the first one stays.
    """
    packages: dict[str, Stanza] = {}
    for stanza in stanzas:
        if stanza["Filename"].startswith(MAIN_POOLS):
            packages.setdefault(stanza["Package"], stanza)
    return [packages[name] for name in sorted(packages)]


def package_arrays(packages: list[Stanza]) -> Arrays:
    """Names, labels, split and ids of source, maintainer and debtags of every package."""
    sources = [p.get("Source", p["Package"]).partition(" ")[0] for p in packages]
    sections = [p["Section"].rpartition("/")[2] for p in packages]
    tags = [sorted({t.strip() for t in p.get("Tag", "").split(",")} - {""}) for p in packages]
    source_names, source_id = number(sources)
    section_names, section_id = number(sections)
    # Maintainers are people: the ids say which packages share one, the names stay out.
    _, maintainer_id = number([p["Maintainer"] for p in packages])
    tag_names, tag_id = number([tag for tags_of_one in tags for tag in tags_of_one])
    return {
        "name": blob([p["Package"] for p in packages]),
        "section": section_id.astype(np.uint8),
        "section_name": blob(section_names),
        "source": source_id.astype(np.uint16),
        "source_name": blob(source_names),
        "source_split": np.array([split_of(s) for s in source_names], np.uint8),
        "maintainer": maintainer_id.astype(np.uint16),
        "tag_count": np.array([len(t) for t in tags], np.uint8),
        "tag": tag_id.astype(np.uint16),
        "tag_name": blob(tag_names),
    }


def number(values: list[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the distinct values in order and, for each value, its position among them."""
    names = sorted(set(values))
    position = {name: i for i, name in enumerate(names)}
    return names, np.array([position[v] for v in values], np.int64)


def blob(names: list[str]) -> npt.NDArray[np.uint8]:
    """Pack names into one array of bytes, separated by line feeds."""
    return np.frombuffer("\n".join(names).encode("ascii"), np.uint8)


def split_of(source: str) -> int:
    """0 (train), 1 (validation) or 2 (test), from a hash of the name of the source package."""
    share = int.from_bytes(hashlib.sha256(source.encode()).digest()[:4], "big") / 2**32
    return 0 if share < TRAIN_SHARE else 1 if share < TRAIN_SHARE + VAL_SHARE else 2


def edge_arrays(packages: list[Stanza]) -> Arrays:
    """Relations as edges from the package that declares one to the package that it names.

    At most one edge leads from one package to another: the one of the strongest kind. Edges are in
    order of source, then destination.
    """
    position = {p["Package"]: i for i, p in enumerate(packages)}
    providers = first_providers(packages, position)
    edges: dict[tuple[int, int], int] = {}
    outcome: Counter[str] = Counter()
    for kind, field in enumerate(EDGE_KINDS.values()):
        for source, package in enumerate(packages):
            for target in relation_targets(package.get(field, "")):
                destination = position.get(target, providers.get(target))
                if destination is None:
                    outcome["unresolvable"] += 1
                elif destination == source:
                    outcome["self loop"] += 1
                else:
                    outcome["real" if target in position else "virtual"] += 1
                    edges.setdefault((source, destination), kind)
    print("relations:", dict(outcome))
    ordered = sorted(edges)
    count = Counter(source for source, _ in ordered)
    return {
        "edge_count": np.array([count[i] for i in range(len(packages))], np.uint16),
        "edge_destination": np.array([d for _, d in ordered], np.uint16),
        "edge_kind": np.array([edges[e] for e in ordered], np.uint8),
        "edge_kind_name": blob(list(EDGE_KINDS)),
    }


def first_providers(packages: list[Stanza], position: dict[str, int]) -> dict[str, int]:
    """For each virtual package, the position of its first provider in order of names."""
    providers: dict[str, list[int]] = defaultdict(list)
    for package in packages:
        for name in relation_targets(package.get("Provides", "")):
            providers[name].append(position[package["Package"]])
    return {name: min(found) for name, found in providers.items()}


def relation_targets(field: str) -> Iterator[str]:
    """Yield the first alternative of each clause, without version and architecture."""
    for clause in field.split(","):
        first = re.sub(r"\(.*?\)|\[.*?\]|<.*?>", "", clause.partition("|")[0])
        name = first.strip().partition(":")[0]
        if name:
            yield name


def text_arrays(packages: list[Stanza]) -> Arrays:
    """Descriptions as lists of term numbers, and the vectors that turn these into features.

    The TF-IDF weight of a term in a description is its inverse document frequency divided by the
    Euclidean norm of the description's weights (a term counts once: one-line descriptions hardly
    repeat one). Features are these rows times `term_vector`, the first right singular vectors
    scaled so that the features of all packages have a root mean square of 1.
    """
    lines = [p["Description"].partition("\n")[0].lower() for p in packages]
    documents = [set(re.findall(r"[a-z0-9]+[+#]*", line)) for line in lines]
    frequency = Counter(term for document in documents for term in document)
    vocabulary = sorted(term for term, n in frequency.items() if n >= MIN_DOCUMENTS)
    position = {term: i for i, term in enumerate(vocabulary)}
    terms = [sorted(position[t] for t in document if t in position) for document in documents]

    smoothed = np.array([1 + frequency[term] for term in vocabulary])
    idf = (np.log((1 + len(packages)) / smoothed) + 1).astype(np.float32)
    count = np.array([len(t) for t in terms])
    indptr = np.concatenate([[0], np.cumsum(count)])
    indices = np.concatenate([np.array(t, np.int64) for t in terms])
    weights = idf[indices].astype(np.float64)
    norm = np.sqrt(np.bincount(np.repeat(np.arange(len(terms)), count), weights**2, len(terms)))
    tfidf = csr_matrix((weights / np.repeat(norm, count), indices, indptr))

    start = np.ones(min(tfidf.shape))
    _, singular, rows = svds(tfidf, k=NUM_COMPONENTS, v0=start)
    vectors = rows[np.argsort(-singular)].T
    # A singular vector has no sign of its own: its largest entry is made positive.
    vectors *= np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(NUM_COMPONENTS)])
    vectors /= np.sqrt(np.mean((tfidf @ vectors) ** 2))
    return {
        "term_count": count.astype(np.uint8),
        "term": indices.astype(np.uint16),
        "term_idf": idf,
        "term_vector": vectors.astype(np.float16),
    }


if __name__ == "__main__":
    main()
