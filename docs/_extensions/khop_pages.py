"""Sphinx extension: links to types of other projects, and notebooks to download.

Types of Python, NumPy, torch and PyG link to their projects' pages by rule, so that the build needs
no network. Each tutorial gets a notebook file and a link to it.
"""

import re
from pathlib import Path

import nbformat
from docutils import nodes
from myst_nb.core.read import read_myst_markdown_notebook
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

_PYTHON = "https://docs.python.org/3/library"
_COLLECTIONS = {"Callable", "Iterable", "Iterator", "Mapping", "Sequence", "Generator", "Hashable"}
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
    (r"(\w+(?:Error|Warning|Exception|Interrupt))", f"{_PYTHON}/exceptions.html#{{1}}"),
)
_NOTEBOOKS = "_notebooks"


def link_to_others(
    app: Sphinx, env: BuildEnvironment, node: nodes.Element, content: nodes.Element
) -> nodes.reference | None:
    """Return a link for a type of another project, or None if no rule has it."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    for pattern, page in _PAGES:
        match = re.fullmatch(pattern, target)
        if match:
            address = page.format(target, *match.groups())
            link = nodes.reference("", "", internal=False, refuri=address, reftitle=target)
            link += content
            return link
    return None


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


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handlers."""
    app.connect("missing-reference", link_to_others)
    app.connect("source-read", add_download)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True}
