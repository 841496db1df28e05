"""The tables of the pages that say where we deliberately answer otherwise than TensorFlow; a test proves each row."""

import pytest

from support.paths import DOCS


def departures(page, title):
    """Return the first cells of the table below *title* on a page of docs."""
    section = (DOCS / page).read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n##")[0]
    rows = [line.replace("\\|", "|") for line in section.splitlines() if line.startswith("| ")]
    assert all(row.count(" | ") == rows[0].count(" | ") for row in rows), "each row has the same cells"
    return [row.split(" | ")[0].removeprefix("| ") for row in rows[2:]]


def refuses(error, function, *args, says=""):
    """Check that the call raises this error, and return True."""
    with pytest.raises(error, match=says or None):
        function(*args)
    return True
