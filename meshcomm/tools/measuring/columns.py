"""Tables as text: the first column is aligned to the left, the others to the right."""

from collections.abc import Sequence


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return *rows* of equal length as lines of text.

    >>> print(in_columns([("name", "calls"), ("barrier", "12")]))
    name     calls
    barrier     12
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first_cell, *other_cells in rows:
        cells = [cell.rjust(width) for cell, width in zip(other_cells, widths[1:], strict=True)]
        lines.append("  ".join([first_cell.ljust(widths[0]), *cells]))
    return "\n".join(lines)
