"""Gives layouts the method that draws them.

Notebooks call ``_repr_html_``, which calls `html`. The class is in a layer below this feature, and imports nothing
from here. So `html` is defined here, and assigned to the class when this module is imported. The class declares it for
type checkers and readers, under ``TYPE_CHECKING``. A tensor calls `html` of its layout. `of_plans` does so for plans.

Code that draws is imported at its first use: most programs draw nothing.
"""

from meshcomm.core._types import ShapeLike
from meshcomm.core.layouts.layout import Layout


def html_of_layout(self: Layout, shape: ShapeLike | None = None, title: str = "") -> str:
    """Return the picture of the layout as HTML with SVG, for notebooks.

    Parameters
    ----------
    shape: the shape of an array in this layout; without it, blocks are numbered
    title: stands above the picture; by default the sharding specs

    >>> from meshcomm import Mesh
    >>> Layout(["x"], Mesh(range(2), {"x": 2})).html((5,))[:66]
    '<div><strong>Layout [x]</strong><p>(5,) on mesh x=2: axis 0 is cut'
    """
    from meshcomm.tools.pictures.layouts import layout_html

    return layout_html(self, shape, title)


Layout.html = html_of_layout  # type: ignore[method-assign]
