"""The options of ``bench``. This file imports no operation, so that the other commands begin fast."""

import argparse

NAMES = ("relayout", "all_to_all", "memcpy", "fft", "halo", "disk")


def add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the parser of ``bench`` to *commands*."""
    parser = commands.add_parser(
        "bench",
        help="time operations at growing sizes beside memcpy, and check their results",
        description="Time operations at growing sizes, in turns with a reference such as memcpy, and check their "
        "results: mpiexec -n 4 python -m meshcomm bench relayout fft. The exit code is 1 if a result is wrong.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="operation",
        help=f"{', '.join(NAMES)}; by default the first three, at few sizes",
    )
    parser.add_argument("--min", metavar="BYTES", help="the smallest block of a rank, such as 1K (default)")
    parser.add_argument("--max", metavar="BYTES", help="the largest one, such as 256M (default 64M, or what fits)")
    parser.add_argument("--factor", type=int, help="from one size to the next (default 4)")
    parser.add_argument("--rounds", type=int, help="rounds of each size (default: as many as 0.35 s allow)")
    parser.add_argument("--mesh", metavar="DIMS", help="the mesh, such as x=2,y=2 (default: all ranks along x)")
    parser.add_argument("--from", dest="source", metavar="SPECS", help="the layout before, such as x,unsharded")
    parser.add_argument(
        "--to", dest="target", metavar="SPECS", help="the layout after a relayout, such as unsharded,x"
    )
    parser.add_argument("--shape", metavar="LENGTHS", help="one shape of the whole array, such as 4096,4096")
    parser.add_argument("--dtype", help="of the elements, such as f4 (default f8; for fft c16)")
    parser.add_argument("--folder", help="where disk makes a folder and removes it (default: that of temporary files)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--plot", metavar="FILE", help="also draw a plot, FILE.png or FILE.svg; needs matplotlib")
