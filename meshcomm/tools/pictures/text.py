"""`show`: a layout as text."""

from collections.abc import Sequence
from typing import NamedTuple

from meshcomm.core._arguments import as_integer, as_shape, quote
from meshcomm.core._types import ShapeLike
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.errors import LayoutError, ShapeError
from meshcomm.tools.pictures.view import BlockInterval, LayoutView, MeshView, SlabPanel, blocks_of, panels, wrapped

LEAST_WIDTH = 56
"""Characters in a line of the narrowest picture: indices of 19 digits fit on two borders."""
MOST_ROWS, MOST_COLUMNS, MOST_SLABS = 12, 16, 3
"""Rows and columns of boxes, and slabs, that are drawn. Of more, the middle is left out."""

_ASCII = ("+-++", "+-++", "+-++", "|", "...")
_UNICODE = ("┌─┬┐", "├─┼┤", "└─┴┘", "│", "…")
_COLOURS = (153, 223, 157, 225, 159, 229, 189, 217, 193, 195, 216, 183)
"""Light colours of the 256 that terminals have: black text is readable on them."""


def show(
    layout: Layout | Mesh,
    shape: ShapeLike | None = None,
    *,
    width: int = 80,
    unicode: bool = False,
    colour: bool = False,
) -> str:
    """Return a picture of *layout* as text, for ``print``: which device holds which elements. Or draw a mesh.

    The first sentences say what the picture shows. Each box has the devices that hold it, and the borders have the
    indices, as slices. The last two axes that are cut go down and across. If more axes are cut, there is a picture for
    each interval of the others. Of many boxes the middle is left out, so the text stays short for any mesh.

    The text depends on the arguments only, not on the terminal. ``LayoutError`` for an axis with the spec MATCH, or if
    the numbers of axes differ; ``ShapeError`` for an impossible shape or width.

    Parameters
    ----------
    layout: the layout, or a mesh
    shape: the shape of the array; without it, blocks are numbered
    width: the most characters in a line, 56 or more
    unicode: whether lines are drawn with Unicode's box characters
    colour: whether boxes have colours, by ANSI escape sequences

    >>> import meshcomm as mc
    >>> print(mc.show(mc.Mesh(range(6), {"x": 2, "y": 3})))
    mesh x=2, y=3: 6 devices. Dimension x goes down, dimension y across. Boxes show
    devices.
    <BLANKLINE>
           y=0   y=1   y=2
         +-----+-----+-----+
     x=0 |  0  |  1  |  2  |
         +-----+-----+-----+
     x=1 |  3  |  4  |  5  |
         +-----+-----+-----+
    >>> mesh = mc.Mesh(range(4), {"x": 2, "y": 2})
    >>> print(mc.show(mc.Layout(["x", mc.UNSHARDED], mesh), (5, 3)))
    (5, 3) on mesh x=2, y=2: axis 0 is cut over x into 2 blocks of 3 or 2 elements,
    axis 1 is whole. Each block is on 2 devices. Axis 0 goes down, axis 1 across.
    Boxes show devices.
    <BLANKLINE>
           0:3
         +-----+
     0:3 | 0-1 |
         +-----+
     3:5 | 2-3 |
         +-----+
    """
    if not isinstance(layout, Layout | Mesh):
        instead = ": pass its .layout and its .shape" if hasattr(layout, "layout") else ""
        raise LayoutError(f"show draws a Layout or a Mesh, not {quote(layout)}, a {type(layout).__name__}{instead}")
    width = as_integer(width, "width", ShapeError)
    if width < LEAST_WIDTH:
        raise ShapeError(f"width {width} is too narrow for a picture; it is {LEAST_WIDTH} or more")
    view = _view(layout, shape)
    lines = wrapped(" ".join([*view.sentences(), *_how_to_read(view)]), width)
    if all(ruler.count for ruler in view.rulers):
        shown = panels(view, MOST_SLABS)
        pen = _Pen(*(_UNICODE if unicode else _ASCII), colour)
        most_rows = MOST_ROWS if len(shown) == 1 else MOST_ROWS // 2
        for panel in shown:
            if panel is None:
                lines += ["", pen.dots]
                continue
            lines += ["", *wrapped(f"{panel.title}:" if panel.slab else "", width)]
            lines += _grid_lines(view, panel, pen, width, most_rows)
        lines += wrapped(f"{pen.dots} stands for pictures that are left out." if None in shown else "", width)
    return "\n".join(lines)


def _view(shown: Layout | Mesh, shape: ShapeLike | None) -> LayoutView:
    if isinstance(shown, Layout):
        return LayoutView(shown, None if shape is None else as_shape(shape))
    if shape is not None:
        raise ShapeError(f"show draws a Mesh without a shape, not with {quote(shape)}; a Layout takes one")
    return MeshView(shown)


def _how_to_read(view: LayoutView) -> list[str]:
    if any(ruler.count == 0 for ruler in view.rulers):
        return []
    if view.rows is None or view.columns is None:
        return ["Boxes show devices."]
    down, across = view.axis_name(view.rows), view.axis_name(view.columns)
    return [f"{down[0].upper()}{down[1:]} goes down, {across} across. Boxes show devices."]


class _Pen(NamedTuple):
    """The characters of a picture: lines above, between and below boxes, the line beside a box, and the ellipsis."""

    above: str
    between: str
    below: str
    side: str
    dots: str
    colour: bool

    def line(self, which: str, widths: Sequence[int]) -> str:
        """Return a line over boxes of these widths; *which* has its left end, stroke, joint and right end."""
        left, stroke, joint, right = tuple(which)
        return left + joint.join(stroke * width for width in widths) + right

    def painted(self, text: str, number: int) -> str:
        """Return *text* in the colour with this number."""
        if not self.colour:
            return text
        return f"\x1b[38;5;16;48;5;{_COLOURS[number % len(_COLOURS)]}m{text}\x1b[0m"


class _Cell(NamedTuple):
    text: str
    colour: int | None


def _grid_lines(view: LayoutView, panel: SlabPanel, pen: _Pen, width: int, most_rows: int) -> list[str]:
    """Return the lines of one picture."""
    rows = view.intervals(view.rows, most_rows)
    heads = ["" if view.rows is None else pen.dots if row is None else row.text for row in rows]
    before = max(map(len, heads)) + 2
    count = 1 if view.columns is None else view.rulers[view.columns].count
    limit = min(count, MOST_COLUMNS)
    while True:
        columns = view.intervals(view.columns, limit)
        cells = [
            [_cell(view, panel, row, column, pen, longest=width - before - 10) for column in columns] for row in rows
        ]
        tops = ["" if view.columns is None else pen.dots if c is None else c.text for c in columns]
        widths = [2 + max(len(top), *(len(line[at].text) for line in cells)) for at, top in enumerate(tops)]
        if before + 1 + sum(widths) + len(widths) <= width or limit == 1:
            break
        limit -= 1
    margin = " " * before
    lines = [f"{margin} {' '.join(f'{top:^{wide}}' for top, wide in zip(tops, widths, strict=True))}".rstrip()]
    lines = lines if any(tops) else []
    for number, (head, line) in enumerate(zip(heads, cells, strict=True)):
        lines.append(margin + pen.line(pen.between if number else pen.above, widths))
        drawn = (_drawn_text(cell, wide, pen) for cell, wide in zip(line, widths, strict=True))
        lines.append(f"{head:>{before - 1}} {pen.side}{pen.side.join(drawn)}{pen.side}")
    lines.append(margin + pen.line(pen.below, widths))
    return lines + wrapped(_left_out(view, rows, columns, pen), width)


def _cell(
    view: LayoutView,
    panel: SlabPanel,
    row: BlockInterval | None,
    column: BlockInterval | None,
    pen: _Pen,
    *,
    longest: int,
) -> _Cell:
    if row is None or column is None:
        return _Cell(pen.dots, None)
    blocks = blocks_of(view, panel, row, column)
    first, text = view.first_device(blocks), view.devices(blocks)
    return _Cell((text if len(text) <= longest else f"{first},...").replace("...", pen.dots), first)


def _drawn_text(cell: _Cell, width: int, pen: _Pen) -> str:
    text = f"{cell.text:^{width}}"
    return text if cell.colour is None else pen.painted(text, cell.colour)


def _left_out(
    view: LayoutView, rows: list[BlockInterval | None], columns: list[BlockInterval | None], pen: _Pen
) -> str:
    """Return a sentence that says how much is left out, or nothing."""
    texts = []
    for axis, shown, what in ((view.rows, rows, "rows"), (view.columns, columns, "columns")):
        if axis is not None and None in shown:
            count = view.rulers[axis].count
            texts.append(f"{count - len(shown) + 1:,} of {count:,} {what}")
    return f"{pen.dots} stands for {' and '.join(texts)} of boxes." if texts else ""
