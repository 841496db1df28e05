"""Bytes and seconds for people: all plans, reports and messages write them alike."""


def bytes_text(number: float) -> str:
    """Return *number* bytes for people.

    >>> bytes_text(96), bytes_text(33554432)
    ('96 B', '32.0 MiB')
    """
    if number < 1024:
        return f"{int(number)} B"
    power = min(5, (int(number).bit_length() - 1) // 10)
    return f"{number / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power - 1]}"


def seconds_text(seconds: float) -> str:
    """Return a time for people.

    >>> seconds_text(2.5), seconds_text(2.5e-3), seconds_text(7e-6)
    ('2.5 s', '2.5 ms', '7 µs')
    """
    unit, scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
    return f"{seconds * scale:.3g} {unit}"
