"""The pictures of a layout and of a mesh as SVG, alone and in notebooks."""

from html import escape

from meshcomm.core._arguments import as_shape
from meshcomm.core._types import ShapeLike
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.tools.pictures.svg import LINE, SvgDrawing, draw_view, left_out
from meshcomm.tools.pictures.view import LayoutView, MeshView, wrapped

COLUMNS = 84
"""Characters in a line of words above a picture."""


def layout_svg(layout: Layout, shape: ShapeLike | None = None) -> str:
    """Return a stand-alone SVG of *layout*, for an array of *shape* if that is given."""
    return _svg_of(LayoutView(layout, None if shape is None else as_shape(shape)))


def mesh_svg(mesh: Mesh) -> str:
    """Return a stand-alone SVG of *mesh*."""
    return _svg_of(MeshView(mesh))


def _svg_of(view: LayoutView) -> str:
    drawing, words = SvgDrawing(), " ".join([*view.sentences(), *left_out(view)])
    y = write_lines(drawing, words)
    draw_view(drawing, view, (8, y))
    return drawing.svg(words, alone=True)


def layout_html(layout: Layout, shape: ShapeLike | None = None, title: str = "") -> str:
    """Return the picture of *layout* for notebooks; *title* stands above it."""
    title = title or f"Layout {layout.specs_text}"
    if layout.match_axis is not None:
        words = f"Axis {layout.match_axis} is match: it takes its sharding spec from the source of a relayout."
        return html(title, words, "")
    return _html_of(title, LayoutView(layout, None if shape is None else as_shape(shape)))


def mesh_html(mesh: Mesh) -> str:
    """Return the picture of *mesh* for notebooks."""
    return _html_of(f"Mesh {mesh.name}".rstrip(), MeshView(mesh))


def _html_of(title: str, view: LayoutView) -> str:
    drawing, words = SvgDrawing(), " ".join([*view.sentences(), *left_out(view)])
    draw_view(drawing, view, (8, 8))
    return html(title, words, drawing.svg(words))


def html(title: str, words: str, svg: str) -> str:
    """Return a title, words below it and a picture, as HTML; the words are escaped here."""
    return f"<div><strong>{escape(title)}</strong><p>{escape(words)}</p>{svg}</div>"


def write_lines(drawing: SvgDrawing, text: str, y: float = 8 + LINE / 2) -> float:
    """Write *text* in lines from *y* downwards, and return the y of the space below."""
    for line in wrapped(text, COLUMNS):
        drawing.text(8, y, line)
        y += LINE
    return y + LINE / 2
