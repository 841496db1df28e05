"""The options of ``bench``. This file imports no operation, so that the other commands begin fast."""

from meshcomm.tools.cli.commands import Argument, Command, imported_command

NAMES = ("relayout", "all_to_all", "memcpy", "fft", "halo", "disk")

BENCH = Command(
    help="time operations at growing sizes beside memcpy, and check their results",
    description="Time operations at growing sizes, in turns with a reference such as memcpy, and check their "
    "results: mpiexec -n 4 python -m meshcomm bench relayout fft. The exit code is 1 if a result is wrong.",
    arguments=(
        Argument(
            "names",
            nargs="*",
            metavar="operation",
            help=f"{', '.join(NAMES)}; by default the first three, at few sizes",
        ),
        Argument("--min", metavar="BYTES", help="the smallest block of a rank, such as 1K (default)"),
        Argument("--max", metavar="BYTES", help="the largest one, such as 256M (default 64M, or what fits)"),
        Argument("--factor", type=int, help="from one size to the next (default 4)"),
        Argument("--rounds", type=int, help="rounds of each size (default: as many as 0.35 s allow)"),
        Argument("--mesh", metavar="DIMS", help="the mesh, such as x=2,y=2 (default: all ranks along x)"),
        Argument("--from", dest="source", metavar="SPECS", help="the layout before, such as x,unsharded"),
        Argument("--to", dest="target", metavar="SPECS", help="the layout after a relayout, such as unsharded,x"),
        Argument("--shape", metavar="LENGTHS", help="one shape of the whole array, such as 4096,4096"),
        Argument("--dtype", help="of the elements, such as f4 (default f8; for fft c16)"),
        Argument("--folder", help="where disk makes a folder and removes it (default: that of temporary files)"),
        Argument("--json", action="store_true", help="print one JSON document instead of tables"),
        Argument("--plot", metavar="FILE", help="also draw a plot, FILE.png or FILE.svg; needs matplotlib"),
    ),
    action=imported_command("bench.command:bench"),
)
