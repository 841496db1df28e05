"""Gives plans the methods that draw them, as `of_layouts` does for layouts."""

from pathlib import Path

from meshcomm.core.plans.plan import Plan


def html_of_plan(self: Plan) -> str:
    """Return the text and the picture of the plan as HTML with SVG, for notebooks.

    >>> import meshcomm as mc
    >>> mesh = mc.Mesh(range(2), {"x": 2})
    >>> plan = mc.plan_relayout((3,), "f8", mc.Layout(["x"], mesh), mc.Layout([mc.UNSHARDED], mesh))
    >>> "<svg" in plan.html()
    True
    """
    from meshcomm.tools.pictures.plans import plan_html

    return plan_html(self)


def save_plan(self: Plan, path: str | Path) -> None:
    """Write the picture of the plan to the SVG file *path*. ``LayoutError`` for another suffix than ``.svg``.

    For each step, the picture has the blocks before it, the blocks after it, in the colours of the blocks that their
    elements come from, and a table of the bytes that go from rank to rank. Of many ranks, the middle is left out.

    >>> import tempfile, meshcomm as mc
    >>> mesh = mc.Mesh(range(2), {"x": 2})
    >>> plan = mc.plan_relayout((3,), "f8", mc.Layout(["x"], mesh), mc.Layout([mc.UNSHARDED], mesh))
    >>> plan.save(tempfile.mkdtemp() + "/plan.svg")
    """
    from meshcomm.tools.pictures.plans import plan_svg, write_svg

    write_svg(path, plan_svg(self))


Plan.html = html_of_plan  # type: ignore[method-assign]
Plan.save = save_plan  # type: ignore[method-assign]
