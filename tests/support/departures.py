"""The table of deliberate differences from TensorFlow in the documentation; a test checks each row."""

import pytest

from support.paths import DOCS


def table():
    """Return the group and the case of each row, the first two cells, of the table of departures."""
    page = (DOCS / "coming-from" / "tensorflow.md").read_text(encoding="utf-8")
    section = page.partition("## Every departure\n")[2].partition("\n##")[0]
    rows = [line.replace("\\|", "|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert {len(row) for row in rows} == {5}, "each row has the same cells"
    return [(row[0].removeprefix("| "), row[1]) for row in rows[2:]]


def departures(group):
    """Return the cases of a group in the table."""
    return [case for row_group, case in table() if row_group == group]


def refuses(error, function, *args, says="", **options):
    """Check that the call raises this error, and return True."""
    with pytest.raises(error, match=says or None):
        function(*args, **options)
    return True
