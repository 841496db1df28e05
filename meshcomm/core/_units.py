"""Bytes, seconds and plans as text, in the same form in all plans, reports and messages."""

from collections.abc import Iterable, Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def unit_of(number: float) -> tuple[str, int]:
    """Return the best unit to show *number* bytes, and its bytes.

    >>> unit_of(96), unit_of(33554432)
    (('B', 1), ('MiB', 1048576))
    """
    power = max(0, min(5, (int(number).bit_length() - 1) // 10))
    return _UNITS[power], 1024**power


def bytes_text(number: float) -> str:
    """Return *number* bytes as text.

    >>> bytes_text(96), bytes_text(33554432)
    ('96 B', '32.0 MiB')
    """
    unit, size = unit_of(number)
    return f"{int(number)} B" if size == 1 else f"{number / size:.1f} {unit}"


def seconds_text(seconds: float) -> str:
    """Return a time as text.

    >>> seconds_text(2.5), seconds_text(2.5e-3), seconds_text(7e-6)
    ('2.5 s', '2.5 ms', '7 µs')
    """
    unit, scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
    return f"{seconds * scale:.3g} {unit}"


def some_of(items: Sequence[object], limit: int) -> str:
    """Return at most *limit* of *items* as text, and the number of the others.

    >>> some_of(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    return ", ".join(map(str, items[:limit])) + (f" and {len(items) - limit} more" if len(items) > limit else "")


def outline(title: str, steps: Iterable[object] = (), rows: Iterable[str] = ()) -> str:
    """Return a plan as text: its *title*, its *steps* with numbers, and *rows* about the whole plan.

    >>> print(outline("a plan", ["slice", outline("exchange", rows=["in 2 rounds"])], ["nothing is kept"]))
    a plan
      1. slice
      2. exchange
         in 2 rounds
      nothing is kept
    """
    numbered = (f"{number}. {step}".replace("\n", "\n ") for number, step in enumerate(steps, 1))
    return "\n  ".join(text.replace("\n", "\n  ") for text in (title, *numbered, *rows))
