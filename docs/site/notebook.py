"""Make a notebook of the tutorial, docs/tutorial.ipynb: python docs/site/notebook.py. A test compares both."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "tutorial.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n.*?^```\n)?", re.MULTILINE | re.DOTALL)


def cells(text: str) -> list[dict[str, object]]:
    """Return the cells of a page: its prose, and its blocks of Python without what they print.

    >>> [cell["source"] for cell in cells("# Title\\n\\n```python\\nprint(1)\\n```\\n\\n```text\\n1\\n```\\nEnd")]
    [['# Title'], ['print(1)'], ['End']]
    """
    found: list[dict[str, object]] = []
    for number, piece in enumerate(CODE.split(text)):
        if source := piece.strip("\n").splitlines(keepends=True):
            kind = "code" if number % 2 else "markdown"
            more: dict[str, object] = {"execution_count": None, "outputs": []} if number % 2 else {}
            found.append({"cell_type": kind, "id": f"cell-{number}", "metadata": {}, **more, "source": source})
    return found


def notebook(text: str) -> str:
    """Return the notebook of a page, as JSON of version 4.5 of the format."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells(text), "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(PAGE.read_text("utf-8")), "utf-8")
