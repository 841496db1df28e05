"""The errors in docs/faq.md: each section has wrong code, and the message of its error."""

import re
import textwrap
from typing import NamedTuple

from support.paths import DOCS


class Section(NamedTuple):
    """An error: the title of its section, code that raises it, and the message as the page has it."""

    title: str
    code: str
    message: str


def page():
    return (DOCS / "faq.md").read_text(encoding="utf-8")


def first_lines():
    """Return the code that all examples begin with."""
    return re.search(r"^```python\n(.*?)^```$", page(), re.MULTILINE | re.DOTALL)[1]


def errors():
    """Return the sections with an error."""
    pattern = r"^## ([^\n]*)\n\n```py\n(.*?)^```\n\n```text\n(.*?)^```$"
    return [Section(*fields) for fields in re.findall(pattern, page(), re.MULTILINE | re.DOTALL)]


def complaint(section, message):
    """Return None if the page has this *message*, else the text to paste there; ``...`` on the page matches any text.

    >>> complaint(Section("A", "1 / 0", "Error: division\\n  ... zero\\n"), "Error: division by zero")
    >>> print(complaint(Section("A", "1 / 0", "nothing\\n"), "Error: division by zero"))
    docs/faq.md, A: the message is now
    <BLANKLINE>
    Error: division by zero
    """
    pattern = r".*".join(map(re.escape, " ".join(section.message.split()).split("...")))
    if pattern and re.fullmatch(pattern, " ".join(message.split()), re.DOTALL):
        return None
    lines = [textwrap.fill(line, 115, subsequent_indent="    ") for line in message.splitlines()]
    return "\n".join([f"docs/faq.md, {section.title}: the message is now", "", *lines])
