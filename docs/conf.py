"""Sphinx's configuration of the site, which `scripts/docs` builds."""

import importlib.metadata
import os
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
    "khop_pages",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_extensions"]

html_theme = "furo"
html_title = f"khop {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_search_scorer = str(Path(__file__).parent / "_extensions" / "scorer.js")
html_favicon = "_static/favicon.svg"
html_theme_options = {"light_logo": "logo.svg", "dark_logo": "logo.svg", "sidebar_hide_name": True}
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings put names between single backticks.
default_role = "literal"
autodoc_mock_imports = ["lightning"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"  # in signatures they would be longer than the descriptions
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": False}
napoleon_use_ivar = True
napoleon_numpy_docstring = False

# Edit links need the repository's address, which `[project.urls]` is the one place for.
urls = importlib.metadata.metadata("khop").get_all("Project-URL") or []
for repository in (url.partition(", ")[2] for url in urls if url.startswith("Repository, ")):
    html_theme_options |= {
        "source_repository": repository,
        "source_branch": "main",
        "source_directory": "docs/",
    }

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Commands in tutorials come from the environment that builds the site.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# Tutorials are notebooks that run when they have changed. A failing cell fails the build.
nb_execution_mode = "cache"
nb_execution_cache_path = str(Path(__file__).parents[1] / "build" / "tutorials")
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_merge_streams = True

# Quotes in prose would be curly, and the dashes of options one long dash: copied, they fail.
smartquotes = False
