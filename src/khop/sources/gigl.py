"""Reader of what GiGL's data preprocessor writes: a task's frozen configuration names all of it.

    graphMetadata:
      condensedNodeTypeMap: {'0': user}
      condensedEdgeTypeMap: {'0': {srcNodeType: user, relation: follows, dstNodeType: user}}
    sharedConfig: {preprocessedMetadataUri: .../preprocessed_metadata.yaml}

    condensedNodeTypeToPreprocessedMetadata:
      '0': {nodeIdKey: node_id, featureKeys: [age, x], labelKeys: [y], tfrecordUriPrefix: .../}
    condensedEdgeTypeToPreprocessedMetadata:
      '0': {srcNodeIdKey: src, dstNodeIdKey: dst,
            mainEdgeInfo: {featureKeys: [w], tfrecordUriPrefix: .../}}

Files whose names begin with a prefix and end in .tfrecord or .tfrecord.gz hold a tf.train.Example
for each node or edge. Ids of a type are 0, 1, ... in any order. Features of a type become one
attribute (x, edge_attr), float32 unless all are integers, labels y. Links that supervise
(`positiveEdgeInfo`, `negativeEdgeInfo`) and quantised features are not read. Any process; imports
no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from khop.data import Feature
from khop.data.files import check_regular
from khop.data.joined import TakenFeature
from khop.log import shown
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.sources.base import Source
from khop.sources.columns import attribute, ids_of, shards
from khop.sources.scratch import Scratch
from khop.sources.tables import package_for
from khop.sources.tfrecords import read_examples
from khop.typing import EDGE, NODE, EdgeType

_SUFFIXES = (".yaml", ".yml")
_RECORDS = (".tfrecord", ".tfrecord.gz")
# No configuration is longer, nor a text in it. PyYAML reads some 100 kB a second.
_MOST_BYTES = 1 << 20
_MOST_TEXT = 1 << 14


class Gigl(Source):
    """Output of GiGL's data preprocessor."""

    paths = "FILE.yaml"
    about = (
        "a frozen task configuration of GiGL, and the TFRecords of nodes and of edges that it "
        "names, on this machine; features of a type become one `x` (`edge_attr`), labels `y`. "
        "Links that supervise, and quantised features, are not read"
    )
    unpacked = "all"

    def matches(self, spec: str) -> bool:
        """Return True for a file of YAML."""
        return Path(spec).suffix in _SUFFIXES and Path(spec).is_file()

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """See `read_gigl`."""
        return read_gigl(Path(spec), scratch)


def read_gigl(path: Path, scratch: Scratch) -> GraphSource:
    """Read the graph of a frozen task configuration.

    A graph with one node type and one edge type is homogeneous.

    Args:
        path: the configuration. Paths in it are taken from the working directory, as GiGL does.
        scratch: where columns are unpacked.

    Raises:
        FileNotFoundError: a file that it names is not on this machine.
        ValueError, TypeError: a file has wrong content; the message names it.
        ModuleNotFoundError: PyYAML is not installed.
    """
    config = _Entry(_yaml(path), f"'{path}'")
    graph = config.entry("graphMetadata")
    names = {n: str(name) for n, name in _numbered(graph, "condensedNodeTypeMap", "nodeTypes")}
    edge_types = {
        number: _edge_type(_Entry(entry, f"'{number}' of {graph.what}"), names)
        for number, entry in _numbered(graph, "condensedEdgeTypeMap", "edgeTypes")
    }
    stored = _local(config.entry("sharedConfig").text("preprocessedMetadataUri"))
    metadata = _Entry(_yaml(stored), f"'{stored}'")
    of_nodes = metadata.entry("condensedNodeTypeToPreprocessedMetadata")
    of_edges = metadata.entry("condensedEdgeTypeToPreprocessedMetadata")
    nodes = {name: _nodes(of_nodes.entry(n), scratch) for n, name in names.items()}
    edges = {name: _edges(of_edges.entry(n), scratch) for n, name in edge_types.items()}
    if len(nodes) == len(edges) == 1:
        return GraphSource({NODE: nodes.popitem()[1]}, {EDGE: edges.popitem()[1]})
    return GraphSource(nodes, edges, heterogeneous=True)


class _Entry:
    """Object of a configuration, each entry checked when it is asked for."""

    def __init__(self, content: Any, what: str) -> None:
        if not isinstance(content, dict):
            raise ValueError(f"{what} must be an object (got '{type(content).__name__}')")
        self.content: dict[Any, Any] = content
        self.what = what

    def entry(self, name: Any) -> _Entry:
        """Return an object within this one."""
        return _Entry(self.content.get(name), f"'{name}' of {self.what}")

    def text(self, name: str) -> str:
        """Return a text."""
        value = self.content.get(name)
        if not isinstance(value, str) or not value:
            raise ValueError(f"'{name}' of {self.what} must be a text (got {shown(value)})")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of texts, empty if it is not there."""
        value = self.content.get(name) or []
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ValueError(
                f"'{name}' of {self.what} must be a list of names (got {shown(value)})"
            )
        return value


def _numbered(graph: _Entry, by_number: str, listed: str) -> Iterable[tuple[Any, Any]]:
    """Return types by number: of a single one GiGL need not say that it is 0."""
    types = graph.content.get(listed)
    if by_number not in graph.content and isinstance(types, list) and len(types) == 1:
        return [("0", types[0])]
    return graph.entry(by_number).content.items()


def _yaml(path: Path) -> Any:
    yaml = package_for("yaml", "pyyaml", path)
    if check_regular(path).stat().st_size > _MOST_BYTES:
        raise ValueError(
            f"'{path}' has {path.stat().st_size:,} bytes: no configuration has so many"
        )

    class Plain(yaml.SafeLoader):  # type: ignore[name-defined,misc]
        """Loader of what has the size of its text: a few nested aliases stand for terabytes."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it has aliases (*name), which khop does not read")
            return super().compose_node(parent, index)

        def construct_scalar(self, node: Any) -> Any:
            if len(node.value) > _MOST_TEXT:
                raise yaml.YAMLError(f"a text of {len(node.value):,} characters")
            return super().construct_scalar(node)

    try:
        loader = Plain(path.read_bytes())
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"'{path}' is no YAML: {error}") from None


def _local(uri: str) -> Path:
    """Return the path of a file on this machine."""
    if "://" in uri and not uri.startswith("file://"):
        raise FileNotFoundError(
            f"'{uri[:200]}' is not on this machine: copy what the configuration names, and put the "
            "new paths in it"
        )
    return Path(uri.removeprefix("file://"))


def _edge_type(entry: _Entry, names: dict[Any, str]) -> EdgeType:
    src, name, dst = (entry.text(key) for key in ("srcNodeType", "relation", "dstNodeType"))
    for node_type in (src, dst):
        if node_type not in names.values():
            raise ValueError(
                f"{entry.what} joins '{node_type}', which is none of {[*names.values()]}"
            )
    return src, name, dst


def _files(entry: _Entry) -> list[Path]:
    prefix = entry.text("tfrecordUriPrefix")
    path = _local(prefix)
    folder, begin = (path, "") if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder '{folder}', which {entry.what} names")
    found = [p for p in folder.iterdir() if p.name.startswith(begin) and p.name.endswith(_RECORDS)]
    if not found:
        raise FileNotFoundError(
            f"no file of TFRecords begins with '{prefix}', as {entry.what} says"
        )
    return shards(found)


def _nodes(entry: _Entry, scratch: Scratch) -> NodeSource:
    keys = {"id": [entry.text("nodeIdKey")], **_keys(entry, "x", "y")}
    files = _files(entry)
    columns = read_examples(files, keys, scratch)
    if not columns:
        return NodeSource(0)
    ids = ids_of(columns.pop("id"), f"'{files[0]}'")
    places = np.full(len(ids), -1, np.int64)
    if len(ids) and 0 <= int(ids.min()) <= int(ids.max()) < len(ids):
        places[ids] = np.arange(len(ids))
    if len(places) and int(places.min()) < 0:
        raise ValueError(
            f"'{files[0]}' and the files beside it have {len(ids):,} nodes, whose ids are not each "
            f"of 0 to {len(ids) - 1:,} once"
        )
    return NodeSource(
        len(ids),
        {n: TakenFeature(attribute(c, f"'{files[0]}'"), places) for n, c in columns.items()},
    )


def _edges(entry: _Entry, scratch: Scratch) -> EdgeSource:
    info = entry.entry("mainEdgeInfo")
    ends = {"src": [entry.text("srcNodeIdKey")], "dst": [entry.text("dstNodeIdKey")]}
    files = _files(info)
    columns = read_examples(files, {**ends, **_keys(info, "edge_attr", "edge_label")}, scratch)
    if not columns:
        return EdgeSource(np.empty(0, np.int64), np.empty(0, np.int64))
    src, dst = (ids_of(columns.pop(end), f"'{files[0]}'") for end in ends)
    attrs: dict[str, Feature] = {n: attribute(c, f"'{files[0]}'") for n, c in columns.items()}
    return EdgeSource(src, dst, attrs)


def _keys(entry: _Entry, features: str, labels: str) -> dict[str, Sequence[str]]:
    named = {features: entry.texts("featureKeys"), labels: entry.texts("labelKeys")}
    for keys in named.values():
        if len(set(keys)) < len(keys):
            raise ValueError(f"{entry.what} names a key twice: {shown(keys)}")
    return {name: keys for name, keys in named.items() if keys}
