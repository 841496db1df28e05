"""Plans as text."""


def count_text(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def bytes_text(number: float) -> str:
    """Return *number* bytes for people.

    >>> _bytes(96), _bytes(33554432)
    ('96 B', '32.0 MiB')
    """
    if number < 1024:
        return f"{int(number)} B"
    power = min(5, (int(number).bit_length() - 1) // 10)
    return f"{number / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power - 1]}"
