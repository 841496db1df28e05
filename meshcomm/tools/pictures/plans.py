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
"""The most slabs of a layout, devices in a table of bytes, and pieces along an axis of a box that are drawn."""
WORDS = 110
"""Characters in a line of words above a picture."""
HEIGHT = 22.0
"""Pixels of a row in a table of bytes."""


def plan_svg(plan: Plan, *, alone: bool = True) -> str:
    """Return the picture of *plan* as SVG. If *alone*, it has the text of the plan, and a white background."""
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
    with replacing(resolved(file), PUBLIC) as output:
        output.write(svg + "\n")


# -- a step -----------------------------------------------------------------------------------------------------------


def _draw_step(drawing: SvgDrawing, step: Step, y: float) -> None:
    """Draw the blocks before and after *step*, and the bytes that go from device to device."""
    views = LayoutView(step.source, step.shape), LayoutView(step.target, step.shape)
    cut_axes = sorted({axis for view in views for axis in view.cut_axes})
    source_view, target_view = (LayoutView(layout, step.shape, cut_axes) for layout in (step.source, step.target))
    slab_text = " at its first indices" if target_view.slabs else ""
    captions = [
        " ".join([caption, *view.ranks_text()])
        for caption, view in (
            ("Before.", source_view),
            (f"After, with the colours of before{slab_text}.", target_view),
        )
    ]
    drawing.text(8, y + LINE / 2, captions[0])
    x = draw_view(drawing, source_view, (8, y + LINE), limit=MAX_PANELS)
    drawing.arrow(x + 16, y + 90, x + 56)
    x = max(x + 72, 8 + CHARACTER * (len(captions[0]) + 2))
    drawing.text(x, y + LINE / 2, captions[1])
    right = draw_view(drawing, target_view, (x, y + LINE), _PiecePainter(source_view, target_view), limit=MAX_PANELS)
    x = max(right + 48, x + CHARACTER * (len(captions[1]) + 2))
    if not isinstance(step, Slice):
        _draw_table(drawing, step, x, y)


class _PiecePainter:
    """Draws the boxes of the layout after a step, each from pieces in the colours of the blocks before it."""

    def __init__(self, source_view: LayoutView, target_view: LayoutView) -> None:
        self.source_view, self.target_view = source_view, target_view

    def __call__(self, drawing: SvgDrawing, row: ShownInterval, column: ShownInterval, panel: SlabPanel) -> None:
        """Draw one box."""
        if row.interval is None or column.interval is None:
            draw_box(self.target_view, drawing, row, column, panel)
            return
        size = column.end - column.begin, row.end - row.begin
        row_intervals, column_intervals = (
            self._overlapping_intervals(self.source_view.row_axis, row),
            self._overlapping_intervals(self.source_view.column_axis, column),
        )
        if max(len(row_intervals), len(column_intervals)) > MAX_PIECES:
            drawing.area(column.begin, row.begin, size, "#ddd")  # too many to tell colours apart
        else:
            for row_interval, column_interval in product(row_intervals, column_intervals):
                self._draw_piece(drawing, (row, row_interval), (column, column_interval), panel)
        blocks = blocks_of(self.target_view, panel, row.interval, column.interval)
        text, (x, y) = self.target_view.devices(blocks), (column.begin + size[0] / 2, row.begin + size[1] / 2)
        drawing.rectangle(column.begin, row.begin, size, "none", f"devices {text}")
        label_width = CHARACTER * len(text) + 6
        drawing.area(x - label_width / 2, y - LINE / 2, (label_width, LINE), "#fff", 0.6)
        drawing.text(x, y, text, "middle", on_box=True)

    def _overlapping_intervals(self, axis: int | None, shown_interval: ShownInterval) -> list[BlockInterval]:
        """Return the intervals before the step that share an index with *shown_interval*, up to MAX_PIECES + 1."""
        assert shown_interval.interval is not None
        if axis is None:
            return [shown_interval.interval]
        ruler = self.source_view.rulers[axis]
        numbers = ruler.interval_numbers(shown_interval.interval.start or 0, shown_interval.interval.stop or 0)
        return [ruler.interval(number) for number in numbers[: MAX_PIECES + 1]]

    def _draw_piece(
        self,
        drawing: SvgDrawing,
        row: tuple[ShownInterval, BlockInterval],
        column: tuple[ShownInterval, BlockInterval],
        panel: SlabPanel,
    ) -> None:
        """Draw a piece of a box. *row* and *column* have the interval of the box, and that of a block before."""
        (top, bottom), (left, right) = _overlap_pixels(*row), _overlap_pixels(*column)
        blocks = blocks_of(self.source_view, self._front_intervals(panel), row[1], column[1])
        colour = COLOURS[self.source_view.first_device(blocks) % len(COLOURS)]
        drawing.area(left, top, (right - left, bottom - top), colour)

    def _front_intervals(self, panel: SlabPanel) -> SlabPanel:
        """Return the intervals before the step that hold the first indices of the slab *panel* after it."""
        rulers = self.source_view.rulers
        first_indices = {axis: interval.start or 0 for axis, interval in panel.slab.items()}
        return SlabPanel(
            {
                axis: rulers[axis].interval(rulers[axis].interval_numbers(index, index + 1)[0])
                for axis, index in first_indices.items()
            }
        )


def _overlap_pixels(shown_interval: ShownInterval, interval: BlockInterval) -> tuple[float, float]:
    """Return the first and the last pixel of the indices that a shown interval shares with another interval."""
    assert shown_interval.interval is not None
    start = max(shown_interval.interval.start or 0, interval.start or 0)
    stop = min(shown_interval.interval.stop or 0, interval.stop or 0)
    return shown_interval.pixel(start), shown_interval.pixel(stop)


# -- bytes ------------------------------------------------------------------------------------------------------------


def _draw_table(drawing: SvgDrawing, step: Step, x: float, y: float) -> None:
    """Draw the table of the bytes that go from rank to rank; bytes that stay on a rank are in brackets."""
    senders, receivers = (_shown_devices(step, layout) for layout in (step.source, step.target))
    table = _byte_counts(step, senders, receivers)
    row_labels, column_labels = (
        ["..." if receiver is None else str(step.ranks[receiver]) for receiver in devices]
        for devices in (senders, receivers)
    )
    texts = [[_cell_text(table, row_device, column_device) for column_device in receivers] for row_device in senders]
    cell_width = CHARACTER * max(len(text) for row in [*texts, column_labels] for text in row) + 12
    left = x + CHARACTER * max(map(len, row_labels)) + 8
    largest = (
        max((count for (row_device, column_device), count in table.items() if row_device != column_device), default=0)
        or 1
    )
    drawing.text(x, y + LINE / 2, "Bytes from rank ↓ to rank →. What a rank keeps is in brackets.")
    y += 3 * LINE
    for column, column_label in enumerate(column_labels):
        drawing.text(left + (column + 0.5) * cell_width, y - LINE / 2, column_label, "middle")
    for row_number, (sender, row_label) in enumerate(zip(senders, row_labels, strict=True)):
        top_edge = y + row_number * HEIGHT
        drawing.text(left - 6, top_edge + HEIGHT / 2, row_label, "end")
        for column, receiver in enumerate(receivers):
            count = 0 if sender is None or receiver is None or sender == receiver else table[sender, receiver]
            drawing.rectangle(
                left + column * cell_width, top_edge, (cell_width, HEIGHT), _blue(count / largest) if count else "#eee"
            )
            drawing.text(
                left + (column + 0.5) * cell_width,
                top_edge + HEIGHT / 2,
                texts[row_number][column],
                "middle",
                on_box=True,
            )
    if None in senders or None in receivers:
        drawing.text(x, y + (len(senders) + 0.7) * HEIGHT, f"Cut short: there are {len(step.ranks):,} ranks.")


def _shown_devices(step: Step, layout: Layout) -> list[int | None]:
    """Return the devices of *step* that hold blocks of *layout* and are shown; None stands for those left out."""
    ranks = layout.mesh.ranks
    return [
        None if position is None else step.ranks.index(ranks[position])
        for position in shown_numbers(len(ranks), MAX_DEVICES)
    ]


def _byte_counts(
    step: Step, senders: Sequence[int | None], receivers: Sequence[int | None]
) -> dict[tuple[int, int], int]:
    """Return the number of bytes from each of *senders* to each of *receivers*; a device may be both."""
    bytes_between: dict[tuple[int, int], int] = {}
    for receiver in receivers:
        if receiver is not None:
            boxes = step.receives(receiver)
            peers, sizes = step.members(receiver, boxes.peers), boxes.sizes * step.itemsize
            bytes_between |= {
                (sender, receiver): int(sizes[peers == sender].sum()) for sender in senders if sender is not None
            }
    return bytes_between


def _cell_text(table: dict[tuple[int, int], int], sender: int | None, receiver: int | None) -> str:
    if sender is None or receiver is None:
        return "..."
    count = table[sender, receiver]
    return "" if not count else f"({bytes_text(count)})" if sender == receiver else bytes_text(count)


def _blue(fraction: float) -> str:
    """Return a blue, which is stronger for a larger *fraction* of the largest number of bytes.

    >>> _blue(1.0), _blue(0.0)
    ('#8fbbe8', '#e6f0fa')
    """
    return "#" + "".join(
        f"{round(light + (strong - light) * fraction):02x}" for light, strong in ((230, 143), (240, 187), (250, 232))
    )
