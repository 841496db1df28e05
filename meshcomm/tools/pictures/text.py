"""`show`: a layout as text."""

from collections.abc import Sequence
from typing import NamedTuple

from meshcomm.core._arguments import as_integer, as_shape, quote
from meshcomm.core._types import ShapeLike
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.errors import LayoutError, ShapeError
from meshcomm.tools.pictures.view import BlockInterval, LayoutView, MeshView, SlabPanel, blocks_of, panels, wrapped

MIN_WIDTH = 56
"""The fewest characters in a line: indices of 19 digits fit on two borders."""
MAX_ROWS, MAX_COLUMNS, MAX_SLABS = 12, 16, 3
"""The most rows and columns of boxes, and the most slabs, that are drawn. Of more, the middle is left out."""

_ASCII = ("+-++", "+-++", "+-++", "|", "...")
_UNICODE = ("┌─┬┐", "├─┼┤", "└─┴┘", "│", "…")
_COLOURS = (153, 223, 157, 225, 159, 229, 189, 217, 193, 195, 216, 183)
"""Light colours among the 256 of terminals: black text is readable on them."""


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
    indices, as slices. The last two sharded axes go down and across. For each combination of blocks of the other
    sharded axes there is a picture of its own. Of many boxes the middle is left out, so the text stays short.

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
        hint = ": pass its .layout and its .shape" if hasattr(layout, "layout") else ""
        raise LayoutError(f"show draws a Layout or a Mesh, not {quote(layout)}, a {type(layout).__name__}{hint}")
    width = as_integer(width, "width", ShapeError)
    if width < MIN_WIDTH:
        raise ShapeError(f"width {width} is too narrow for a picture; it is {MIN_WIDTH} or more")
    view = _view(layout, shape)
    lines = wrapped(" ".join([*view.sentences(), *_how_to_read(view)]), width)
    if all(ruler.count for ruler in view.rulers):
        shown_panels = panels(view, MAX_SLABS)
        style = _BoxStyle(*(_UNICODE if unicode else _ASCII), colour)
        max_rows = MAX_ROWS if len(shown_panels) == 1 else MAX_ROWS // 2
        for panel in shown_panels:
            if panel is None:
                lines += ["", style.ellipsis]
                continue
            lines += ["", *wrapped(f"{panel.title}:" if panel.slab else "", width)]
            lines += _grid_lines(view, panel, style, width, max_rows)
        lines += wrapped(
            f"{style.ellipsis} stands for pictures that are left out." if None in shown_panels else "", width
        )
    return "\n".join(lines)


def _view(layout: Layout | Mesh, shape: ShapeLike | None) -> LayoutView:
    if isinstance(layout, Layout):
        return LayoutView(layout, None if shape is None else as_shape(shape))
    if shape is not None:
        raise ShapeError(f"show draws a Mesh without a shape, not with {quote(shape)}; a Layout takes one")
    return MeshView(layout)


def _how_to_read(view: LayoutView) -> list[str]:
    if any(ruler.count == 0 for ruler in view.rulers):
        return []
    if view.row_axis is None or view.column_axis is None:
        return ["Boxes show devices."]
    row_axis_name, column_axis_name = view.axis_name(view.row_axis), view.axis_name(view.column_axis)
    return [f"{row_axis_name[0].upper()}{row_axis_name[1:]} goes down, {column_axis_name} across. Boxes show devices."]


class _BoxStyle(NamedTuple):
    """The characters of a picture: lines above, between and below boxes, the line beside a box, and the ellipsis."""

    above: str
    between: str
    below: str
    side: str
    ellipsis: str
    colour: bool

    def border_line(self, border: str, widths: Sequence[int]) -> str:
        """Return a line over boxes of these widths; *border* has its left end, stroke, joint and right end."""
        left, stroke, joint, right = tuple(border)
        return left + joint.join(stroke * width for width in widths) + right

    def painted(self, text: str, number: int) -> str:
        """Return *text* in the colour with this number."""
        if not self.colour:
            return text
        return f"\x1b[38;5;16;48;5;{_COLOURS[number % len(_COLOURS)]}m{text}\x1b[0m"


class _Cell(NamedTuple):
    text: str
    colour: int | None


def _grid_lines(view: LayoutView, panel: SlabPanel, style: _BoxStyle, width: int, max_rows: int) -> list[str]:
    """Return the lines of one picture."""
    rows = view.intervals(view.row_axis, max_rows)
    row_labels = ["" if view.row_axis is None else style.ellipsis if row is None else row.text for row in rows]
    margin_width = max(map(len, row_labels)) + 2
    column_count = 1 if view.column_axis is None else view.rulers[view.column_axis].count
    max_columns = min(column_count, MAX_COLUMNS)
    while True:
        columns = view.intervals(view.column_axis, max_columns)
        cells = [
            [_cell(view, panel, row, column, style, max_length=width - margin_width - 10) for column in columns]
            for row in rows
        ]
        column_labels = [
            "" if view.column_axis is None else style.ellipsis if column is None else column.text for column in columns
        ]
        widths = [
            2 + max(len(column_label), *(len(cell_row[index].text) for cell_row in cells))
            for index, column_label in enumerate(column_labels)
        ]
        if margin_width + 1 + sum(widths) + len(widths) <= width or max_columns == 1:
            break
        max_columns -= 1
    margin = " " * margin_width
    centred_labels = [
        f"{column_label:^{column_width}}" for column_label, column_width in zip(column_labels, widths, strict=True)
    ]
    lines = [f"{margin} {' '.join(centred_labels)}".rstrip()]
    lines = lines if any(column_labels) else []
    for number, (row_label, cell_row) in enumerate(zip(row_labels, cells, strict=True)):
        lines.append(margin + style.border_line(style.between if number else style.above, widths))
        texts = (_drawn_text(cell, column_width, style) for cell, column_width in zip(cell_row, widths, strict=True))
        lines.append(f"{row_label:>{margin_width - 1}} {style.side}{style.side.join(texts)}{style.side}")
    lines.append(margin + style.border_line(style.below, widths))
    return lines + wrapped(_left_out(view, rows, columns, style), width)


def _cell(
    view: LayoutView,
    panel: SlabPanel,
    row: BlockInterval | None,
    column: BlockInterval | None,
    style: _BoxStyle,
    *,
    max_length: int,
) -> _Cell:
    if row is None or column is None:
        return _Cell(style.ellipsis, None)
    blocks = blocks_of(view, panel, row, column)
    first, text = view.first_device(blocks), view.devices(blocks)
    return _Cell((text if len(text) <= max_length else f"{first},...").replace("...", style.ellipsis), first)


def _drawn_text(cell: _Cell, width: int, style: _BoxStyle) -> str:
    text = f"{cell.text:^{width}}"
    return text if cell.colour is None else style.painted(text, cell.colour)


def _left_out(
    view: LayoutView, rows: list[BlockInterval | None], columns: list[BlockInterval | None], style: _BoxStyle
) -> str:
    """Return a sentence about rows and columns that are left out, or "" if none are."""
    texts = []
    for axis, intervals, name in ((view.row_axis, rows, "rows"), (view.column_axis, columns, "columns")):
        if axis is not None and None in intervals:
            count = view.rulers[axis].count
            texts.append(f"{count - len(intervals) + 1:,} of {count:,} {name}")
    return f"{style.ellipsis} stands for {' and '.join(texts)} of boxes." if texts else ""
