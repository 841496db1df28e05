"""Draw the layouts of the tutorial, docs/layouts.svg: python docs/draw_layouts.py. A test compares both."""

from pathlib import Path

import meshcomm as mc

PICTURE = Path(__file__).parent / "layouts.svg"
SHAPE = (6, 8)
CELL, GAP, TOP = 24, 40, 40
COLOURS = ("#9ecae9", "#ffbf79", "#88d27a", "#d6a5c9")


def layouts() -> dict[str, mc.Layout]:
    """Return the layouts, by what the picture calls them."""
    mesh = mc.Mesh(range(4), [("y", 2), ("x", 2)])
    specs = {'["y", U]': ["y", mc.UNSHARDED], '["y", "x"]': ["y", "x"], '[("y", "x"), U]': [("y", "x"), mc.UNSHARDED]}
    return {name: mc.Layout(each, mesh) for name, each in specs.items()}


def blocks(layout: mc.Layout) -> dict[tuple[int, int, int, int], list[int]]:
    """Return the devices that hold each block, by its first row, height, first column and width."""
    found: dict[tuple[int, int, int, int], list[int]] = {}
    for device in range(layout.mesh.size):
        rows, columns = layout.block_slices(SHAPE, device)
        box = rows.start, rows.stop - rows.start, columns.start, columns.stop - columns.start
        found.setdefault(box, []).append(device)
    return found


def picture() -> str:
    """Return the picture: for each layout the array, its blocks, and who holds them."""
    height, width = TOP + SHAPE[0] * CELL + 10, len(layouts()) * (SHAPE[1] * CELL + GAP) - GAP + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="14" text-anchor="middle">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, (name, layout) in enumerate(layouts().items()):
        left = 10 + number * (SHAPE[1] * CELL + GAP)
        text = name.replace('"', "&quot;")
        lines.append(f'<text x="{left + SHAPE[1] * CELL // 2}" y="24" font-family="monospace">{text}</text>')
        for (row, rows, column, columns), devices in blocks(layout).items():
            x, y, wide, high = left + column * CELL, TOP + row * CELL, columns * CELL, rows * CELL
            colour, held = COLOURS[devices[0]], "devices" if len(devices) > 1 else "device"
            lines.append(f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{colour}" stroke="black"/>')
            text = f"{held} {' and '.join(map(str, devices))}"
            lines.append(f'<text x="{x + wide // 2}" y="{y + high // 2 + 5}">{text}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture())
