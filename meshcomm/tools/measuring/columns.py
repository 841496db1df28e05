"""Tables for people: the first column to the left, the others to the right."""

from collections.abc import Sequence


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return *rows* of equal length as lines of text.

    >>> print(in_columns([("name", "calls"), ("barrier", "12")]))
    name     calls
    barrier     12
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)
