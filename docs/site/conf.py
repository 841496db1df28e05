"""The settings of Sphinx. It reads what assemble.py writes: see there."""

import sys
from pathlib import Path

import meshcomm

sys.path.insert(0, str(Path(__file__).parent))

project, author, release = "meshcomm", "The meshcomm developers", meshcomm.__version__
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings"]

# Markdown as GitHub reads it.
myst_heading_anchors = 4

nitpicky = True
autodoc_typehints = "none"  # the docstrings say what a parameter takes
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
add_module_names = False
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

html_theme = "furo"  # without fonts or scripts from elsewhere
html_static_path, html_css_files = ["static"], ["site.css"]
html_title = f"meshcomm {release}"
html_copy_source = False
html_show_sphinx = False
