"""Reader of graphs that GiGL's data preprocessor wrote, by a task's frozen configuration.

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
attribute (x or edge_attr), float32 unless all are integers. Labels become y or edge_label. Links
for supervision (`positiveEdgeInfo`, `negativeEdgeInfo`) and quantised features are not read.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from khop.data import RowStore
from khop.data.joined import TakenFeature
from khop.log import shown
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.sources.base import Source
from khop.sources.columns import attribute, graph_of, ids_of, shards
from khop.sources.entries import Entry
from khop.sources.scratch import Scratch
from khop.sources.tables import package_for
from khop.sources.tfrecords import read_examples
from khop.typing import EdgeType

_SUFFIXES = (".yaml", ".yml")
_RECORDS = (".tfrecord", ".tfrecord.gz")
# Bounds of a configuration, and of a text in it. PyYAML reads some 100 kB per second.
_MOST_BYTES = 1 << 20
_MOST_TEXT = 1 << 14


class Gigl(Source):
    """Reader of the output of GiGL's data preprocessor, by its YAML configuration."""

    paths = "FILE.yaml"
    about = (
        "a frozen task configuration of GiGL, and the TFRecords of nodes and of edges that it "
        "names, on this machine; features of a type become one `x` (`edge_attr`), labels `y`. "
        "Links that supervise, and quantised features, are not read"
    )
    unpacked = "all"

    def matches(self, spec: str) -> bool:
        """Return True if `spec` is a YAML file."""
        return Path(spec).suffix in _SUFFIXES and Path(spec).is_file()

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read the graph of the configuration file `spec`.

        With one node type and one edge type it is homogeneous. Paths in the configuration are
        relative to the working directory, as in GiGL.
        """
        config = _read_yaml(Path(spec))
        graph = config.entry("graphMetadata")
        names = {n: str(name) for n, name in _numbered(graph, "condensedNodeTypeMap", "nodeTypes")}
        edge_types = {
            key: _edge_type(Entry(entry, graph.of(key)), names)
            for key, entry in _numbered(graph, "condensedEdgeTypeMap", "edgeTypes")
        }
        uri = config.entry("sharedConfig").text("preprocessedMetadataUri")
        metadata = _read_yaml(_local(uri))
        of_nodes = metadata.entry("condensedNodeTypeToPreprocessedMetadata")
        of_edges = metadata.entry("condensedEdgeTypeToPreprocessedMetadata")
        return graph_of(
            {name: _nodes(of_nodes.entry(n), scratch) for n, name in names.items()},
            {name: _edges(of_edges.entry(n), scratch) for n, name in edge_types.items()},
        )


def _numbered(graph: Entry, by_number: str, listed: str) -> Iterable[tuple[Any, Any]]:
    """Return (number, type) pairs of node or edge types. A single type may lack its number, 0.

    `by_number` and `listed` are keys of `graph`: of types by number, and of the list of types.
    """
    types = graph.content.get(listed)
    if by_number not in graph.content and isinstance(types, list) and len(types) == 1:
        return [("0", types[0])]
    return graph.entry(by_number).content.items()


def _read_yaml(path: Path) -> Entry:
    yaml = package_for("yaml", "pyyaml", path)

    class Plain(yaml.SafeLoader):  # type: ignore[name-defined,misc]
        """YAML loader without aliases and long texts: nested aliases can expand to terabytes."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it has aliases (*name), which khop does not read")
            return super().compose_node(parent, index)

        def construct_scalar(self, node: Any) -> Any:
            if len(node.value) > _MOST_TEXT:
                raise yaml.YAMLError(f"a text of {len(node.value):,} characters")
            return super().construct_scalar(node)

    def parse(content: bytes) -> object:
        loader = Plain(content)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()

    return Entry.read(path, _MOST_BYTES, parse, yaml.YAMLError)


def _local(uri: str) -> Path:
    """Return the path that a URI names on this machine.

    Raises:
        FileNotFoundError: the URI names another machine or a cloud's storage.
    """
    if "://" in uri and not uri.startswith("file://"):
        raise FileNotFoundError(
            f"'{uri[:200]}' is not on this machine: copy what the configuration names, and put the "
            "new paths in it"
        )
    return Path(uri.removeprefix("file://"))


def _edge_type(entry: Entry, names: dict[Any, str]) -> EdgeType:
    src, name, dst = (entry.text(key) for key in ("srcNodeType", "relation", "dstNodeType"))
    for node_type in (src, dst):
        if node_type not in names.values():
            raise ValueError(
                f"{entry.name} joins '{node_type}', which is none of {[*names.values()]}"
            )
    return src, name, dst


def _files(entry: Entry) -> list[Path]:
    prefix = entry.text("tfrecordUriPrefix")
    path = _local(prefix)
    folder, begin = (path, "") if path.is_dir() else (path.parent, path.name)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder '{folder}', which {entry.name} names")
    files = [p for p in folder.iterdir() if p.name.startswith(begin) and p.name.endswith(_RECORDS)]
    if not files:
        raise FileNotFoundError(
            f"no file of TFRecords begins with '{prefix}', as {entry.name} says"
        )
    return shards(files)


def _nodes(entry: Entry, scratch: Scratch) -> NodeSource:
    keys = {"id": [entry.text("nodeIdKey")], **_keys(entry, "x", "y")}
    files = _files(entry)
    columns = read_examples(files, keys, scratch)
    if not columns:
        return NodeSource(0)
    ids = ids_of(columns.pop("id"), f"'{files[0]}'")
    rows = np.full(len(ids), -1, np.int64)
    if len(ids) and 0 <= int(ids.min()) <= int(ids.max()) < len(ids):
        rows[ids] = np.arange(len(ids))
    if len(rows) and int(rows.min()) < 0:
        raise ValueError(
            f"'{files[0]}' and the files beside it have {len(ids):,} nodes, whose ids are not each "
            f"of 0 to {len(ids) - 1:,} once"
        )
    return NodeSource(
        len(ids), {n: TakenFeature(attribute(c, f"'{files[0]}'"), rows) for n, c in columns.items()}
    )


def _edges(entry: Entry, scratch: Scratch) -> EdgeSource:
    info = entry.entry("mainEdgeInfo")
    ends = {"src": [entry.text("srcNodeIdKey")], "dst": [entry.text("dstNodeIdKey")]}
    files = _files(info)
    columns = read_examples(files, {**ends, **_keys(info, "edge_attr", "edge_label")}, scratch)
    if not columns:
        return EdgeSource(np.empty(0, np.int64), np.empty(0, np.int64))
    src, dst = (ids_of(columns.pop(end), f"'{files[0]}'") for end in ends)
    attrs: dict[str, RowStore] = {n: attribute(c, f"'{files[0]}'") for n, c in columns.items()}
    return EdgeSource(src, dst, attrs)


def _keys(entry: Entry, features: str, labels: str) -> dict[str, Sequence[str]]:
    named = {features: entry.texts("featureKeys"), labels: entry.texts("labelKeys")}
    for keys in named.values():
        if len(set(keys)) < len(keys):
            raise ValueError(f"{entry.name} names a key twice: {shown(keys)}")
    return {name: keys for name, keys in named.items() if keys}
