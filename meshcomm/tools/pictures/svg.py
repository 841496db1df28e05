"""SvgDrawing: SVG elements, and the picture of a `LayoutView`.

Text outside of boxes has the colour of the page around it, so pictures are readable on dark pages too. Boxes are light
and have black text on every page. Pictures have a bounded size: of many boxes the middle is left out.
"""

from collections.abc import Callable, Sequence
from html import escape
from math import prod
from typing import NamedTuple

from meshcomm.tools.pictures.view import BlockInterval, LayoutView, SlabPanel, blocks_of, panels

MAX_BOXES, MAX_PANELS = 8, 4
"""The most boxes along an axis, and the most slabs, that are drawn. Of more, the middle is left out."""
LONG_SIDE, MIN_SHORT_SIDE = 220.0, 100.0
"""Pixels: the longer side of a picture, before boxes are widened for their text, and the minimum of the other side."""
CHARACTER, LINE, GAP, PANEL_GAP = 6.7, 15.0, 22.0, 24.0
"""Pixels: the width of a character of `FONT`, the height of a line, the length of an ellipsis for intervals that are
left out, and the space between pictures."""
FONT = 'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="11"'
COLOURS = (
    *("#aec7e8", "#ffd8a8", "#b2e2b0", "#e3c4ee", "#99e2e0", "#f7e8a0", "#c9c9f5", "#fbc4c4"),
    *("#c9dfc0", "#dcd0b4", "#f9c9e2", "#b8d8f8"),
)
"""Light colours of boxes: black text is readable on them. Device d has colour d modulo their number."""


class SvgDrawing:
    """SVG elements, and the width and height that they take together."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.width = self.height = 0.0

    def rectangle(self, x: float, y: float, size: tuple[float, float], fill: str, note: str = "") -> None:
        """Add a rectangle with a border; *note* is shown when the mouse is on it."""
        self._reach(x + size[0], y + size[1])
        title = f"<title>{escape(note)}</title>" if note else ""
        self.elements.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}" fill="{fill}" '
            f'stroke="#445" stroke-width="1">{title}</rect>'
        )

    def area(self, x: float, y: float, size: tuple[float, float], fill: str, opacity: float = 1.0) -> None:
        """Add a rectangle without a border."""
        self.elements.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}" fill="{fill}" '
            f'fill-opacity="{opacity}"/>'
        )

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", *, on_box: bool = False, bold: bool = False
    ) -> None:
        """Add a line of text; *y* is its middle, and *anchor* says which end of it is at *x*."""
        if not text:
            return
        fraction_before = {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        self._reach(x + (1 - fraction_before) * len(text) * CHARACTER, y + LINE / 2)
        fill = "#111" if on_box else "currentColor"
        weight = ' font-weight="bold"' if bold else ""
        self.elements.append(
            f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}" fill="{fill}"{weight}>{escape(text)}</text>'
        )

    def arrow(self, x: float, y: float, end: float) -> None:
        """Add an arrow to the right, from *x* to *end*."""
        self._reach(end, y + 5)
        self.elements.append(
            f'<path d="M{x:.1f} {y:.1f}H{end - 2:.1f}M{end - 8:.1f} {y - 5:.1f}L{end:.1f} {y:.1f}'
            f'L{end - 8:.1f} {y + 5:.1f}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        )

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def svg(self, words: str, *, alone: bool = False) -> str:
        """Return the drawing as SVG; *words* describe it. If *alone*, it has a white background and black text."""
        width, height = round(self.width + 8), round(self.height + 8)
        ground = '<rect width="100%" height="100%" fill="white"/>' if alone else ""
        colour = ' color="#111"' if alone else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(words)}" {FONT}{colour}>'
            f"{ground}{''.join(self.elements)}</svg>"
        )


class ShownInterval(NamedTuple):
    """An interval that is drawn from pixel *begin* to *end*; None stands for intervals that are left out."""

    interval: BlockInterval | None
    begin: float
    end: float

    def pixel(self, index: int) -> float:
        """Return the pixel at which *index* lies; it is in the interval, or its end."""
        assert self.interval is not None
        start, stop = self.interval.start or 0, self.interval.stop or 1
        return self.begin + (self.end - self.begin) * (index - start) / (stop - start)


Paint = Callable[["SvgDrawing", ShownInterval, ShownInterval, SlabPanel], None]
"""A function that draws one box."""


def draw_view(
    drawing: SvgDrawing,
    view: LayoutView,
    corner: tuple[float, float],
    paint: Paint | None = None,
    limit: int = MAX_PANELS,
) -> float:
    """Draw the pictures of *view* side by side, and return the x of their right end.

    Parameters
    ----------
    drawing: the drawing to draw in
    view: the view
    corner: the upper left corner
    paint: function that draws a box; by default `draw_box`
    limit: the most pictures to draw; there are several if more than two axes are cut
    """
    x, y = corner
    if not all(ruler.count for ruler in view.rulers):
        drawing.text(x, y + LINE, "no elements")
        return x + 80
    for panel in panels(view, limit):
        if panel is None:
            drawing.text(x, y + 60, "...")
            x += 40
            continue
        x = PANEL_GAP + _draw_panel(drawing, view, panel, (x, y), paint or (lambda *box: draw_box(view, *box)))
    return x - PANEL_GAP


def _draw_panel(
    drawing: SvgDrawing, view: LayoutView, panel: SlabPanel, corner: tuple[float, float], paint: Paint
) -> float:
    """Draw one picture, and return the x of its right end."""
    x, y = corner
    rows, columns = (view.intervals(axis, MAX_BOXES) for axis in (view.row_axis, view.column_axis))
    box_labels = [[_label(view, panel, row, column) for column in columns] for row in rows]
    column_labels = [_heading(view.column_axis, column) for column in columns]
    row_labels = [_heading(view.row_axis, row) for row in rows]
    longest_labels = [
        max(len(top), *(len(row_of_labels[column_index]) for row_of_labels in box_labels))
        for column_index, top in enumerate(column_labels)
    ]
    width, height = _picture_size(view)
    shown_columns = _shown_intervals(columns, width, [CHARACTER * length + 10 for length in longest_labels])
    shown_rows = _shown_intervals(rows, height, [22.0] * len(rows))
    left = x + CHARACTER * max(map(len, row_labels)) + (8 if any(row_labels) else 0)
    top = y + (LINE if panel.slab else 0) + LINE * (2 if view.column_axis is not None else 0)
    if panel.slab:
        drawing.text(left, y + LINE / 2, panel.title)
    if view.column_axis is not None:
        row_axis_name = "" if view.row_axis is None else f"{view.axis_name(view.row_axis)} ↓ "
        drawing.text(left, top - 1.5 * LINE, f"{row_axis_name}{view.axis_name(view.column_axis)} →")
    for row, label in zip(shown_rows, row_labels, strict=True):
        drawing.text(left - 6, top + (row.begin + row.end) / 2, label, "end")
    for column, label in zip(shown_columns, column_labels, strict=True):
        drawing.text(left + (column.begin + column.end) / 2, top - LINE / 2, label, "middle")
        for row in shown_rows:
            box = ShownInterval(column.interval, left + column.begin, left + column.end)
            paint(drawing, ShownInterval(row.interval, top + row.begin, top + row.end), box, panel)
    return max(left + shown_columns[-1].end, left + CHARACTER * len(panel.title))


def draw_box(
    view: LayoutView, drawing: SvgDrawing, row: ShownInterval, column: ShownInterval, panel: SlabPanel
) -> None:
    """Draw a box in the colour of its first device, with the devices that hold it."""
    corner, size = (column.begin, row.begin), (column.end - column.begin, row.end - row.begin)
    middle = (column.begin + column.end) / 2, (row.begin + row.end) / 2
    if row.interval is None or column.interval is None:
        drawing.text(*middle, "...", "middle")
        return
    blocks = blocks_of(view, panel, row.interval, column.interval)
    first_device, text = view.first_device(blocks), view.devices(blocks)
    drawing.rectangle(*corner, size, COLOURS[first_device % len(COLOURS)], f"devices {text}")
    drawing.text(*middle, text, "middle", on_box=True)


def _heading(axis: int | None, interval: BlockInterval | None) -> str:
    return "" if axis is None else "..." if interval is None else interval.text


def _label(view: LayoutView, panel: SlabPanel, row: BlockInterval | None, column: BlockInterval | None) -> str:
    if row is None or column is None:
        return ""
    return view.devices(blocks_of(view, panel, row, column))


def _picture_size(view: LayoutView) -> tuple[float, float]:
    """Return width and height of a picture, in proportion to the array within limits."""
    rows, columns = (
        1 if axis is None or view.shape is None else view.shape[axis] for axis in (view.row_axis, view.column_axis)
    )
    if view.row_axis is None:
        return (LONG_SIDE if view.column_axis is not None else 40.0), 40.0
    scale = LONG_SIDE / max(rows, columns)
    return max(MIN_SHORT_SIDE, columns * scale), max(MIN_SHORT_SIDE, rows * scale)


def _shown_intervals(
    intervals: Sequence[BlockInterval | None], length: float, min_sizes: Sequence[float]
) -> list[ShownInterval]:
    """Return the pixels of intervals, in proportion along *length* pixels, but none shorter than its minimum size."""
    sizes = [0 if interval is None else (interval.stop or 1) - (interval.start or 0) for interval in intervals]
    total, position, shown_intervals = max(1, sum(sizes)), 0.0, []
    for interval, size, min_size in zip(intervals, sizes, min_sizes, strict=True):
        pixels = GAP if interval is None else max(min_size, length * size / total)
        shown_intervals.append(ShownInterval(interval, position, position + pixels))
        position += pixels
    return shown_intervals


def left_out(view: LayoutView) -> list[str]:
    """Return a sentence about boxes and slabs that the picture of *view* leaves out, or an empty list."""
    counts = [
        (1 if axis is None else view.rulers[axis].count, MAX_BOXES) for axis in (view.row_axis, view.column_axis)
    ]
    counts.append((prod(view.rulers[axis].count for axis in view.slabs), MAX_PANELS))
    names = ("rows of boxes", "columns of boxes", "slabs")
    texts = [
        f"{limit} of {count:,} {name}" for (count, limit), name in zip(counts, names, strict=True) if count > limit
    ]
    return [f"Cut short: it shows {' and '.join(texts)}."] if texts else []
