"""Sphinx's configuration of the site; `scripts/docs` builds it."""

import sys
from pathlib import Path

from khop._version import __version__

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "khop"
author = "khop's authors"
copyright = "2026, khop's authors"
version = release = __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "khop_commands",
    "khop_docstrings",
]
exclude_patterns = ["_extensions"]

html_theme = "furo"
html_title = f"khop {release}"
html_static_path = ["_static"]
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings put names between single backticks.
default_role = "literal"
autodoc_mock_imports = ["lightning"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures would be longer than the descriptions
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": False}
napoleon_use_ivar = True
napoleon_numpy_docstring = False

# Tutorials are notebooks that run when they have changed; a failing cell fails the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parents[1] / "build" / "tutorials")
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_merge_streams = True

# Quotes in prose would be curly, and the dashes of options one long dash: copied, they fail.
smartquotes = False
