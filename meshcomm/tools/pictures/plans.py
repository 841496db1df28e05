"""The picture of a plan as SVG: for each step the blocks before and after, and who sends how many bytes to whom."""

from collections.abc import Sequence
from html import escape
from itertools import product
from pathlib import Path

from meshcomm.core._arguments import quote
from meshcomm.core._files import PUBLIC, replacing, resolved
from meshcomm.core._units import bytes_text
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.plans.plan import Plan
from meshcomm.core.plans.step import Slice, Step
from meshcomm.errors import LayoutError
from meshcomm.tools.pictures.svg import CHARACTER, COLOURS, LINE, ShownInterval, SvgDrawing, draw_box, draw_view
from meshcomm.tools.pictures.view import BlockInterval, LayoutView, SlabPanel, blocks_of, shown_numbers, wrapped

MAX_PANELS, MAX_DEVICES, MAX_PIECES = 2, 8, 8
"""Slabs of a layout, devices in a table of bytes, and pieces along an axis of a box, that are drawn."""
WORDS = 110
"""Characters in a line of words above a picture."""
HEIGHT = 22.0
"""Pixels of a row in a table of bytes."""


def plan_svg(plan: Plan, *, alone: bool = True) -> str:
    """Return the picture of *plan*: with its text and a white ground, or for a page that has the text already."""
    drawing, y = SvgDrawing(), 16.0
    if alone:
        for line in repr(plan).split("\n"):
            for row in wrapped(line, WORDS):
                drawing.text(8, y, row)
                y += LINE
        y += LINE
    for number, step in enumerate(plan.steps, 1):
        drawing.text(8, y, f"{number}. {step}", bold=True)
        _draw_step(drawing, step, y + LINE)
        y = drawing.height + 2 * LINE
    if not plan.steps:
        drawing.text(8, y, "Nothing moves: each device keeps its block.", bold=True)
        draw_view(drawing, LayoutView(plan.target, plan.shape), (8, y + LINE), limit=MAX_PANELS)
    return drawing.svg(" ".join(repr(plan).split()), alone=alone)


def plan_html(plan: Plan) -> str:
    """Return the text and the picture of *plan* for notebooks."""
    return f"<div><pre>{escape(repr(plan))}</pre>{plan_svg(plan, alone=False)}</div>"


def write_svg(path: str | Path, svg: str) -> None:
    """Write *svg* to a file. ``LayoutError`` for another suffix than ``.svg``."""
    file = Path(path)
    if file.suffix.lower() != ".svg":
        raise LayoutError(f"a picture is saved as SVG: {quote(str(path))} must end in .svg")
    with replacing(resolved(file), PUBLIC) as new:
        new.write(svg + "\n")


# -- a step -----------------------------------------------------------------------------------------------------------


def _draw_step(drawing: SvgDrawing, step: Step, y: float) -> None:
    """Draw the blocks before and after *step*, and the bytes that go from device to device."""
    plain = LayoutView(step.source, step.shape), LayoutView(step.target, step.shape)
    cut = sorted({axis for view in plain for axis in view.cut_axes})
    before, after = (LayoutView(layout, step.shape, cut) for layout in (step.source, step.target))
    front = " at its first indices" if after.slabs else ""
    captions = [
        " ".join([words, *view.ranks_text()])
        for words, view in (("Before.", before), (f"After, with the colours of before{front}.", after))
    ]
    drawing.text(8, y + LINE / 2, captions[0])
    x = draw_view(drawing, before, (8, y + LINE), limit=MAX_PANELS)
    drawing.arrow(x + 16, y + 90, x + 56)
    x = max(x + 72, 8 + CHARACTER * (len(captions[0]) + 2))
    drawing.text(x, y + LINE / 2, captions[1])
    right = draw_view(drawing, after, (x, y + LINE), _PiecePainter(before, after), limit=MAX_PANELS)
    x = max(right + 48, x + CHARACTER * (len(captions[1]) + 2))
    if not isinstance(step, Slice):
        _draw_table(drawing, step, x, y)


class _PiecePainter:
    """Draws the boxes of the layout *after*, each from pieces in the colours of the blocks *before*."""

    def __init__(self, before: LayoutView, after: LayoutView) -> None:
        self.before, self.after = before, after

    def __call__(self, drawing: SvgDrawing, row: ShownInterval, column: ShownInterval, panel: SlabPanel) -> None:
        """Draw one box."""
        if row.interval is None or column.interval is None:
            draw_box(self.after, drawing, row, column, panel)
            return
        size = column.end - column.begin, row.end - row.begin
        down, across = (
            self._overlapping_intervals(self.before.row_axis, row),
            self._overlapping_intervals(self.before.column_axis, column),
        )
        if max(len(down), len(across)) > MAX_PIECES:
            drawing.area(column.begin, row.begin, size, "#ddd")  # too many to tell colours apart
        else:
            for one, other in product(down, across):
                self._draw_piece(drawing, (row, one), (column, other), panel)
        blocks = blocks_of(self.after, panel, row.interval, column.interval)
        text, (x, y) = self.after.devices(blocks), (column.begin + size[0] / 2, row.begin + size[1] / 2)
        drawing.rectangle(column.begin, row.begin, size, "none", f"devices {text}")
        wide = CHARACTER * len(text) + 6
        drawing.area(x - wide / 2, y - LINE / 2, (wide, LINE), "#fff", 0.6)
        drawing.text(x, y, text, "middle", on_box=True)

    def _overlapping_intervals(self, axis: int | None, shown: ShownInterval) -> list[BlockInterval]:
        """Return the intervals before that share an index with the one *shown*; too many, if they are too many."""
        assert shown.interval is not None
        if axis is None:
            return [shown.interval]
        ruler = self.before.rulers[axis]
        numbers = ruler.interval_numbers(shown.interval.start or 0, shown.interval.stop or 0)
        return [ruler.interval(number) for number in numbers[: MAX_PIECES + 1]]

    def _draw_piece(
        self,
        drawing: SvgDrawing,
        row: tuple[ShownInterval, BlockInterval],
        column: tuple[ShownInterval, BlockInterval],
        panel: SlabPanel,
    ) -> None:
        """Draw a piece of a box: of each axis, the box as it is shown and the interval before."""
        (top, bottom), (left, right) = _overlap_pixels(*row), _overlap_pixels(*column)
        blocks = blocks_of(self.before, self._front_intervals(panel), row[1], column[1])
        colour = COLOURS[self.before.first_device(blocks) % len(COLOURS)]
        drawing.area(left, top, (right - left, bottom - top), colour)

    def _front_intervals(self, panel: SlabPanel) -> SlabPanel:
        """Return the intervals before that hold the first index of the slab after."""
        rulers = self.before.rulers
        first = {axis: interval.start or 0 for axis, interval in panel.slab.items()}
        return SlabPanel(
            {axis: rulers[axis].interval(rulers[axis].interval_numbers(at, at + 1)[0]) for axis, at in first.items()}
        )


def _overlap_pixels(shown: ShownInterval, interval: BlockInterval) -> tuple[float, float]:
    """Return the pixels of what a shown interval shares with another one."""
    assert shown.interval is not None
    start = max(shown.interval.start or 0, interval.start or 0)
    stop = min(shown.interval.stop or 0, interval.stop or 0)
    return shown.pixel(start), shown.pixel(stop)


# -- bytes ------------------------------------------------------------------------------------------------------------


def _draw_table(drawing: SvgDrawing, step: Step, x: float, y: float) -> None:
    """Draw the table of the bytes that go from rank to rank; what a rank keeps is in brackets."""
    froms, tos = (_shown_devices(step, layout) for layout in (step.source, step.target))
    table = _bytes(step, froms, tos)
    names, tops = (
        ["..." if device is None else str(step.ranks[device]) for device in devices] for devices in (froms, tos)
    )
    texts = [[_cell_text(table, a, b) for b in tos] for a in froms]
    wide = CHARACTER * max(len(text) for row in [*texts, tops] for text in row) + 12
    left = x + CHARACTER * max(map(len, names)) + 8
    largest = max((count for (a, b), count in table.items() if a != b), default=0) or 1
    drawing.text(x, y + LINE / 2, "Bytes from rank ↓ to rank →. What a rank keeps is in brackets.")
    y += 3 * LINE
    for at, top in enumerate(tops):
        drawing.text(left + (at + 0.5) * wide, y - LINE / 2, top, "middle")
    for number, (sender, name) in enumerate(zip(froms, names, strict=True)):
        top_edge = y + number * HEIGHT
        drawing.text(left - 6, top_edge + HEIGHT / 2, name, "end")
        for at, device in enumerate(tos):
            count = 0 if sender is None or device is None or sender == device else table[sender, device]
            drawing.rectangle(left + at * wide, top_edge, (wide, HEIGHT), _blue(count / largest) if count else "#eee")
            drawing.text(left + (at + 0.5) * wide, top_edge + HEIGHT / 2, texts[number][at], "middle", on_box=True)
    if None in froms or None in tos:
        drawing.text(x, y + (len(froms) + 0.7) * HEIGHT, f"Cut short: there are {len(step.ranks):,} ranks.")


def _shown_devices(step: Step, layout: Layout) -> list[int | None]:
    """Return the devices of *step* that hold blocks of *layout* and are shown; None stands for those left out."""
    ranks = layout.mesh.ranks
    return [None if at is None else step.ranks.index(ranks[at]) for at in shown_numbers(len(ranks), MAX_DEVICES)]


def _bytes(step: Step, senders: Sequence[int | None], receivers: Sequence[int | None]) -> dict[tuple[int, int], int]:
    """Return how many bytes go from each of *senders* to each of *receivers*; a device may be both."""
    bytes_between: dict[tuple[int, int], int] = {}
    for device in receivers:
        if device is not None:
            boxes = step.receives(device)
            peers, sizes = step.members(device, boxes.peers), boxes.sizes * step.itemsize
            bytes_between |= {
                (sender, device): int(sizes[peers == sender].sum()) for sender in senders if sender is not None
            }
    return bytes_between


def _cell_text(table: dict[tuple[int, int], int], sender: int | None, device: int | None) -> str:
    if sender is None or device is None:
        return "..."
    count = table[sender, device]
    return "" if not count else f"({bytes_text(count)})" if sender == device else bytes_text(count)


def _blue(share: float) -> str:
    """Return a blue, the stronger the larger the *share* of the most bytes.

    >>> _blue(1.0), _blue(0.0)
    ('#8fbbe8', '#e6f0fa')
    """
    return "#" + "".join(
        f"{round(light + (strong - light) * share):02x}" for light, strong in ((230, 143), (240, 187), (250, 232))
    )
