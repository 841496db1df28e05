"""Gives layouts and plans the methods that draw them.

Notebooks call ``_repr_html_``, which calls `html`. The classes live on floors below this wing, and import nothing from
here. So `html` is written here, and given to the classes when meshcomm is imported. They declare it for type checkers
and readers, under ``TYPE_CHECKING``. A tensor calls that of its layout. Decision 23 says why it is not a hook.

What draws is imported at its first use: most programs draw nothing.
"""

from pathlib import Path

from meshcomm._types import ShapeLike
from meshcomm.layouts.layout import Layout
from meshcomm.plans.plan import Plan


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
    from meshcomm.pictures.layouts import layout_html

    return layout_html(self, shape, title)


def html_of_plan(self: Plan) -> str:
    """Return the text and the picture of the plan as HTML with SVG, for notebooks."""
    from meshcomm.pictures.plans import plan_html

    return plan_html(self)


def save_plan(self: Plan, path: str | Path) -> None:
    """Write the picture of the plan to the SVG file *path*. ``LayoutError`` for another suffix than ``.svg``.

    For each step it has the blocks before, the blocks after, in the colours of the blocks that they come from, and a
    table of the bytes that go from rank to rank. Of many ranks the middle is left out.
    """
    from meshcomm.pictures.plans import plan_svg, write_svg

    write_svg(path, plan_svg(self))


Layout.html = html_of_layout  # type: ignore[method-assign]
Plan.html = html_of_plan  # type: ignore[method-assign]
Plan.save = save_plan  # type: ignore[method-assign]
