"""``python -m meshcomm show``."""

import argparse
from collections.abc import Callable
from pathlib import Path

from meshcomm.core.failures.launchers import is_first
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import MeshcommError
from meshcomm.tools.cli.arguments import layout_of, mesh_of, shape_of
from meshcomm.tools.cli.commands import Argument, Command
from meshcomm.tools.cli.terminal import say, terminal

BAD_INPUT = 2
"""The exit code for arguments that make no layout, mesh, shape or plan."""

LAYOUT_HELP = "a sharding spec for each axis, with commas: x, unsharded, x+y, x=cuts(0;10;25), x=cyclic(64)"
MESH_HELP = "the mesh dimensions with their sizes: x=4,y=2"
SHAPE_HELP = "the lengths of the array, with commas: 10,7"


def on_first_rank(run: Callable[[], None]) -> int:
    """Run a function on the first rank, and return the exit code; if it fails, print why, in one line."""
    if not is_first():
        return 0
    try:
        run()
    except BrokenPipeError:
        raise
    except (MeshcommError, OSError) as error:
        say(f"meshcomm: {' '.join(str(error).split())}", error=True)
        return 1 if isinstance(error, OSError) else BAD_INPUT
    return 0


def _print_layout(options: argparse.Namespace) -> None:
    from meshcomm.tools.pictures.layouts import layout_svg, mesh_svg
    from meshcomm.tools.pictures.plans import write_svg
    from meshcomm.tools.pictures.text import MIN_WIDTH, show

    mesh = mesh_of(options.mesh)
    layout = mesh if options.layout is None else layout_of(options.layout, mesh)
    shape = None if options.shape is None else shape_of(options.shape)
    screen = terminal()
    text = show(layout, shape, width=max(MIN_WIDTH, screen.width), unicode=screen.unicode, colour=screen.colour)
    if options.svg:
        write_svg(Path(options.svg), layout_svg(layout, shape) if isinstance(layout, Layout) else mesh_svg(layout))
    say(text, colours=screen.colour)


SHOW = Command(
    help="draw which device holds which elements in a layout",
    description="Draw which device holds which elements in a layout. Needs no MPI: "
    'python -m meshcomm show "x,unsharded" --mesh x=4,y=2 --shape 10,7',
    arguments=(
        Argument("layout", nargs="?", help=f"{LAYOUT_HELP}; without it, the mesh is drawn"),
        Argument("--mesh", required=True, help=MESH_HELP),
        Argument("--shape", help=f"{SHAPE_HELP}; without it, blocks are numbered"),
        Argument("--svg", metavar="FILE", help="also write the picture to an SVG file"),
    ),
    action=lambda options: on_first_rank(lambda: _print_layout(options)),
)
