"""Draw the layers of the package, docs/layers.svg: their order is in pyproject.toml, the imports are in the sources.

Run it after a change of imports: python docs/draw_layers.py. A test compares the picture with the sources.
"""

import ast
import tomllib
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "meshcomm"
PICTURE = Path(__file__).parent / "layers.svg"

ALL = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
CONTRACTS = [contract for contract in ALL if contract["type"] == "layers"]


def _names(number: int) -> list[str]:
    """Return the names of a contract, from the top to the bottom."""
    return [name.strip() for layer in CONTRACTS[number]["layers"] for name in layer.split("|")]


WHOLE = {"tools": ["cli", "measuring", "pictures"], "core": _names(1)}
"""Folders whose folders are drawn."""
LAYERS = [name for top in _names(0) for name in WHOLE.get(top, [top])]

# From the top to the bottom; features stand above `arrays`.
FOLDERS = [*(name for name in LAYERS if any((PACKAGE / at / name).is_dir() for at in ("", *WHOLE))), "root"]
COLUMNS, LINES = 92, 9  # characters in a line of module names, and lines in a box
TOP, LEFT, WIDTH, HEIGHT = 20, 20, 560, 27 + 13 * LINES
STEP = HEIGHT + 12


def modules() -> dict[str, list[str]]:
    """Return the modules of each folder, compiled ones too."""
    found: dict[str, list[str]] = {folder: [] for folder in FOLDERS}
    for path in sorted(PACKAGE.rglob("*.py*")):
        if path.suffix in (".py", ".pyx") and path.stem != "__init__":
            found[_folder(path.relative_to(PACKAGE).parts)].append(path.stem)
    return found


def imports() -> Counter[tuple[str, str]]:
    """Return how many imports go from one folder to another, without those to the root, which all use."""
    arrows: Counter[tuple[str, str]] = Counter()
    for path in PACKAGE.rglob("*.py"):
        here = _folder(path.relative_to(PACKAGE).parts)
        if here != "root":  # the public names in __init__ and the facades reach everywhere
            found = _imported(ast.parse(path.read_text()))
            arrows.update((here, there) for there in found if there not in (here, "root"))
    return arrows


def _imported(node: ast.AST) -> list[str]:
    """Return the folders that a piece of code imports from when it runs."""
    if isinstance(node, ast.expr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        return []  # no import is in an expression
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and node.module:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    found = {_folder(tuple(name.split(".")[1:])) for name in names if name.startswith("meshcomm.")}
    return [*found, *(folder for child in ast.iter_child_nodes(node) for folder in _imported(child))]


def _folder(parts: tuple[str, ...]) -> str:
    name = parts[1] if parts[0] in WHOLE and len(parts) > 1 else parts[0]
    return name if name in FOLDERS else "root"


def picture() -> str:
    """Return the picture."""
    height = 2 * TOP + STEP * len(FOLDERS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif">',
        "<title>The folders of meshcomm and the imports between them: all go down</title>",
        '<rect width="900" height="100%" fill="white"/>',
        '<defs><marker id="end" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 6 3 0 6z" fill="#33658a"/></marker></defs>',
    ]
    found = modules()
    for number, folder in enumerate(FOLDERS):
        y, feature = TOP + STEP * number, number < FOLDERS.index("arrays")
        colour = "#fbeee0" if feature else "#e3eef6"
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4" fill="{colour}"/>')
        lines.append(f'<text x="{LEFT + 10}" y="{y + 17}" font-size="14" font-weight="bold">{folder}</text>')
        assert len(_lines(found[folder])) <= LINES, f"{folder} has more modules than its box has lines"
        for line, text in enumerate(_lines(found[folder])):
            lines.append(f'<text x="{LEFT + 10}" y="{y + 31 + 13 * line}" font-size="11">{text}</text>')
    for (here, there), count in sorted(imports().items()):
        lines.append(_arrow(here, there, count))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _lines(names: list[str]) -> list[str]:
    """Return names in lines that fit into a box."""
    lines = [""]
    for name in names:
        longer = f"{lines[-1]}, {name}" if lines[-1] else name
        lines = [*lines[:-1], longer] if len(longer) <= COLUMNS else [*lines, name]
    return lines


def _arrow(here: str, there: str, count: int) -> str:
    """Return an arc on the right from a folder to the one that it imports from, wider for more imports."""
    first, last = FOLDERS.index(here), FOLDERS.index(there)
    x, start, end = LEFT + WIDTH, TOP + STEP * first, TOP + STEP * last
    # Arcs leave and reach a folder at heights of their own: the longer, the higher they leave and the lower they end.
    start += 8 + 34 * (len(FOLDERS) - last) / len(FOLDERS)
    end += 8 + 34 * (len(FOLDERS) - first) / len(FOLDERS)
    reach = x + 28 + 24 * abs(last - first)
    width, name = min(4.0, 0.6 + 0.25 * count), f"{here} imports from {there}: {count}"
    return (
        f'<path d="M{x} {start:.1f}C{reach} {start:.1f} {reach} {end:.1f} {x + 2} {end:.1f}" fill="none" '
        f'stroke="#33658a" stroke-opacity="0.65" stroke-width="{width:.2f}" marker-end="url(#end)">'
        f"<title>{name}</title></path>"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture())
