"""``python -m meshcomm show``, and how ``show`` and ``plan`` read layouts, meshes and sizes."""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from meshcomm._arguments import quote
from meshcomm._types import Shape
from meshcomm.errors import LayoutError, MeshcommError, MeshError, ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.layout_text import parsed_specs
from meshcomm.layouts.mesh import Mesh
from meshcomm.pictures.layouts import layout_svg
from meshcomm.pictures.plans import write_svg
from meshcomm.pictures.text import LEAST_WIDTH, show
from meshcomm.ranks import abort
from meshcomm.ranks.terminal import terminal

BAD_INPUT = 2
"""The exit code for arguments that make no layout, mesh, shape or plan."""

LAYOUT_HELP = "a sharding spec for each axis, with commas: x, unsharded, x+y, x=cuts(0;10;25), x=cyclic(64)"
MESH_HELP = "the mesh dimensions with their sizes: x=4,y=2"
SHAPE_HELP = "the lengths of the array, with commas: 10,7"


def add_show(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "show",
        help="draw which device holds which elements in a layout",
        description="Draw which device holds which elements in a layout. Needs no MPI: "
        'python -m meshcomm show "x,unsharded" --mesh x=4,y=2 --shape 10,7',
    )
    parser.add_argument("layout", help=LAYOUT_HELP)
    parser.add_argument("--mesh", required=True, help=MESH_HELP)
    parser.add_argument("--shape", help=f"{SHAPE_HELP}; without it, blocks are numbered")
    parser.add_argument("--svg", metavar="FILE", help="also write the picture to an SVG file")
    parser.set_defaults(action=lambda options: told(lambda: _show(options)))


def told(run: Callable[[], None]) -> int:
    """Run a function on the first rank, and return the exit code; if it fails, print why, in one line."""
    if (abort.launched() or (0, 1))[0] != 0:
        return 0
    try:
        run()
    except (MeshcommError, OSError) as error:
        print(f"meshcomm: {' '.join(str(error).split())}", file=sys.stderr)
        return 1 if isinstance(error, OSError) else BAD_INPUT
    return 0


def _show(options: argparse.Namespace) -> None:
    layout = read_layout(options.layout, read_mesh(options.mesh))
    shape = None if options.shape is None else read_shape(options.shape)
    screen = terminal()
    text = show(layout, shape, width=max(LEAST_WIDTH, screen.width), unicode=screen.unicode, colour=screen.colour)
    if options.svg:
        write_svg(Path(options.svg), layout_svg(layout, shape))
    print(text)


# -- arguments --------------------------------------------------------------------------------------------------------


def read_mesh(text: str) -> Mesh:
    """Return the mesh that is written as *text*; ``MeshError`` for any other text.

    >>> read_mesh("x=4,y=2").shape()
    [4, 2]
    """
    if "|" in text:
        raise MeshError(f"mesh {quote(text)} has a |; it is written x=4,y=2")
    return Mesh.from_string(f"|{text}|*CPU")


def read_layout(text: str, mesh: Mesh) -> Layout:
    """Return the layout on *mesh* whose sharding specs are written as *text*; ``LayoutError`` for any other text.

    >>> read_layout("x+y,unsharded", read_mesh("x=4,y=2")).sharding_specs
    [('x', 'y'), 'unsharded']
    """
    specs = parsed_specs([spec.strip() for spec in text.split(",")] if text.strip() else [])
    if "" in specs:
        raise LayoutError(f"layout {quote(text)} has an empty sharding spec; unsharded is the one of a whole axis")
    return Layout(specs, mesh)


def read_shape(text: str) -> Shape:
    """Return the lengths that are written as *text*; ``ShapeError`` for any other text.

    >>> read_shape("10,7"), read_shape("")
    ((10, 7), ())
    """
    lengths = [each.strip() for each in text.split(",")] if text.strip() else []
    if not all(each.isascii() and each.isdigit() and len(each) < 20 for each in lengths):
        raise ShapeError(f"shape {quote(text)} is no list of lengths; it is written 10,7")
    return tuple(map(int, lengths))


def read_bytes(text: str) -> int:
    """Return the number of bytes that is written as *text*; ``ShapeError`` for any other text.

    >>> read_bytes("1M"), read_bytes("512"), read_bytes("1.5KiB")
    (1048576, 512, 1536)
    """
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,6})?)([kKMGT]?)(?:i?B)?", text)
    if found is None:
        raise ShapeError(f"{quote(text)} is no number of bytes; it is written 512, 64K, 1M or 2G")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))
