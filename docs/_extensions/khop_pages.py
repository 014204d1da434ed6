"""Sphinx extension: links to types of other projects, notebooks, and members to leave out.

Types of Python, NumPy, torch and PyG link to their projects' pages by rule, so that the build needs
no network. Each tutorial gets a notebook file and a link to it.
"""

import builtins
import re
from pathlib import Path

import nbformat
from docutils import nodes
from myst_nb.core.read import read_myst_markdown_notebook
from sphinx import addnodes
from sphinx.application import Sphinx

_PYTHON = "https://docs.python.org/3/library"
_COLLECTIONS = {"Callable", "Iterable", "Iterator", "Mapping", "Sequence", "Generator", "Hashable"}
_ERRORS = [
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
]
_PAGES = (
    (r"torch\.Tensor", "https://docs.pytorch.org/docs/stable/tensors.html"),
    (r"torch\.device|torch\.dtype", "https://docs.pytorch.org/docs/stable/tensor_attributes.html"),
    (r"torch\.(?:\w+\.)*\w+", "https://docs.pytorch.org/docs/stable/search.html?q={0}"),
    (
        r"torch_geometric\.(?:\w+\.)*\w+",
        "https://pytorch-geometric.readthedocs.io/en/latest/search.html?q={0}",
    ),
    (r"(?:np|numpy)\.(\w+)", "https://numpy.org/doc/stable/reference/generated/numpy.{1}.html"),
    (r"(?:pathlib\.)?Path", f"{_PYTHON}/pathlib.html#pathlib.Path"),
    (r"int|float|bool|str|bytes|list|dict|tuple|set|object|None", f"{_PYTHON}/stdtypes.html"),
    (rf"(?:collections\.abc\.)?({'|'.join(_COLLECTIONS)})", f"{_PYTHON}/collections.abc.html"),
    (r"(?:typing\.)?(?:Any|Literal|Protocol|TypeVar|NamedTuple)", f"{_PYTHON}/typing.html"),
    (rf"({'|'.join(_ERRORS)})", f"{_PYTHON}/exceptions.html#{{1}}"),
)
_INTERNAL = frozenset(
    {
        # Parts of loaders' and partitioners' machinery, which subclasses of khop's own use.
        *("connect", "context", "edge_type_index", "homes", "next_name", "opened", "owned_edges"),
        *("local_nodes", "parts", "split", "times_of", "where", "keep_for_others", "use_others"),
        *("close_before_leaving", "output_forms", "devices", "servers", "has_server_list"),
        *("is_split", "of_graph", "settle", "settle_subgraph_type", "kernel_options", "marks"),
        *("identity", "assignment_bytes", "scratch_bytes", "node_bytes", "makes_clusters"),
        *("check_part", "open_as", "open_file", "neighbor_type", "row_type", "key_of", "list_of"),
        *("reap", "release", "numbers", "start", "distinct_requests", "hop_requests"),
    }
)
"""Members of public classes that the reference leaves out: they may change without notice."""
_NOTEBOOKS = "_notebooks"


def link_to_others(app: Sphinx, doctree: nodes.document) -> None:
    """Make links of a page's references to types of other projects.

    Sphinx calls it when a page was read, before it looks for targets in khop's own pages: there,
    `bytes` is also the name of attributes.
    """
    for node in list(doctree.findall(addnodes.pending_xref)):
        target = node.get("reftarget", "")
        if node.get("refdomain") != "py" or node.get("reftype") not in {"class", "exc", "obj"}:
            continue
        for pattern, page in _PAGES:
            match = re.fullmatch(pattern, target)
            if match:
                address = page.format(target, *match.groups())
                link = nodes.reference("", "", internal=False, refuri=address, reftitle=target)
                link += node.children
                node.replace_self(link)
                break
        else:
            if node["reftype"] == "class" and target.islower():  # a word of a Literal
                node.replace_self(node.children)


def add_download(app: Sphinx, page: str, source: list[str]) -> None:
    """Append a link to a tutorial's notebook. Sphinx calls it before it parses a page."""
    if page.startswith("tutorials/") and source[0].startswith("---\nfile_format: mystnb"):
        name = f"../{_NOTEBOOKS}/{page.partition('/')[2]}.ipynb"
        source[0] += f'\n\n<a href="{name}" download>Download this page as a notebook</a>\n'


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Write the tutorials as notebooks beside the built pages."""
    if error is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir) / _NOTEBOOKS
    folder.mkdir(exist_ok=True)
    for page in sorted((Path(app.srcdir) / "tutorials").glob("*.md")):
        notebook = read_myst_markdown_notebook(page.read_text())
        notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        nbformat.write(notebook, folder / f"{page.stem}.ipynb")


def skip_internal(
    app: Sphinx, owner: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Leave internal members of classes out. Return None where other rules decide."""
    return True if owner == "class" and name in _INTERNAL else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handlers."""
    app.connect("doctree-read", link_to_others)
    app.connect("autodoc-skip-member", skip_internal)
    app.connect("source-read", add_download)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True}
