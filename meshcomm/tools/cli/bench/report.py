"""What ``bench`` shows: a table that grows line by line, one JSON document, a plot."""

import platform
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

import meshcomm
from meshcomm.core._arguments import counted
from meshcomm.core._json import read
from meshcomm.core._units import bytes_text
from meshcomm.core.failures.launchers import launch
from meshcomm.core.ranks import rendezvous
from meshcomm.errors import MeshcommError
from meshcomm.tools.cli import about
from meshcomm.tools.cli.about import Host
from meshcomm.tools.cli.bench.measure import Row

PLOT_SUFFIXES = (".png", ".svg")


class BenchResults(NamedTuple):
    """The rows of one operation, and the name of its reference; if *total*, the rate is that of all ranks together."""

    name: str
    reference_name: str
    total: bool
    rows: list[Row]

    def heading(self) -> str:
        """Return the lines above the table."""
        rate = "GB/s" if self.total else "GB/s/rank"
        ratio = f"× {self.reference_name}"
        return (
            f"\n{self.name}\n{'block':>10} {'moved':>10} {'rounds':>6} {'25 % µs':>12} {'median µs':>12} "
            f"{'75 % µs':>12} {rate:>10} {ratio:>17} {'wrong':>7}"
        )


def line(row: Row) -> str:
    """Return one line of the table.

    >>> line(Row(4096, 4096, 25, (1e-6, 2e-6, 3e-6), 2.048, 1.5, 0))
    '   4.0 KiB    4.0 KiB     25          1.0          2.0          3.0       2.05              1.50      ok'
    """
    low, median, high = (f"{seconds * 1e6:12.1f}" for seconds in row.seconds)
    return (
        f"{bytes_text(row.block):>10} {bytes_text(row.moved):>10} {row.rounds:6} {low} {median} {high} "
        f"{row.gigabytes_per_second:10.3g} {row.ratio:17.2f} {row.wrong_elements or 'ok':>7}"
    )


def facts(hosts: Sequence[Host]) -> dict[str, object]:
    """Return what the measurements depend on: machine, versions, ranks and transport."""
    library = about.library()
    return {
        "versions": {
            "meshcomm": meshcomm.__version__,
            "numpy": np.__version__,
            "mpi4py": library.mpi4py,
            "python": platform.python_version(),
        },
        "machine": {
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "processor": about.processor(),
            "hosts": [host._asdict() for host in hosts],
        },
        "ranks": sum(host.ranks for host in hosts),
        "transport": {
            "mpi": library.name,
            "launcher": str(launched) if (launched := launch()) is not None else None,
            "shared_memory": rendezvous.describe(),
        },
        "settings": about.settings(),
    }


def introduction(facts_of_machine: dict[str, object]) -> str:
    """Return the lines above all tables."""
    sections = ("versions", "machine", "transport")
    versions, machine, transport = (read(dict, facts_of_machine, section) for section in sections)
    hosts = [f"{host['name']} ({host['ranks']} on {host['cores']} cores)" for host in machine["hosts"]]
    hosts_text = ", ".join(hosts[:8]) + ", ..." * (len(hosts) > 8)
    is_oversubscribed = any(host["ranks"] > host["cores"] for host in machine["hosts"])
    return "\n".join(
        [
            f"meshcomm {versions['meshcomm']}, NumPy {versions['numpy']}, {transport['mpi']}",
            f"{counted(read(int, facts_of_machine, 'ranks'), 'rank')}: {hosts_text}; {machine['processor']}",
            f"shared memory: {transport['shared_memory']}",
            *["more ranks than cores: ranks wait for each other, and all is slow"] * is_oversubscribed,
            "times are those of the slowest rank; × 2 is twice the time of the reference in the same round",
        ]
    )


def document(facts_of_machine: dict[str, object], benches: Sequence[BenchResults]) -> dict[str, object]:
    """Return what ``--json`` prints."""
    return facts_of_machine | {
        "benches": [
            {
                "name": results.name,
                "beside": results.reference_name,
                "rate": "all ranks" if results.total else "one rank",
                "rows": [_json_row(row) for row in results.rows],
            }
            for results in benches
        ]
    }


def _json_row(row: Row) -> dict[str, object]:
    low, median, high = row.seconds
    return {
        "block_bytes": row.block,
        "moved_bytes": row.moved,
        "rounds": row.rounds,
        "seconds": {"quartile_25": low, "median": median, "quartile_75": high},
        "gigabytes_per_second": row.gigabytes_per_second,
        "ratio": row.ratio,
        "wrong": row.wrong_elements,
    }


def check_plot(path: str) -> None:
    """Raise ``MeshcommError`` unless a plot can be written to the file *path*."""
    if not path.endswith(PLOT_SUFFIXES):
        raise MeshcommError(f"--plot writes {' or '.join(PLOT_SUFFIXES)}, not {path!r}")
    if not Path(path).absolute().parent.is_dir():
        raise MeshcommError(f"--plot writes {path!r}, but there is no such folder")
    if find_spec("matplotlib") is None:
        raise MeshcommError("--plot needs matplotlib, which is not installed: pip install matplotlib")


def plot(path: str, benches: Sequence[BenchResults], title: str) -> None:
    """Draw the rate of each operation over the size of the blocks, with its quartiles."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="bytes of a block", ylabel="GB/s", title=title)
    for results in benches:
        sizes = [row.block for row in results.rows]
        label = f"{results.name} ({'all ranks' if results.total else 'per rank'})"
        (curve,) = axes.plot(sizes, [row.gigabytes_per_second for row in results.rows], "o-", label=label)
        low, high = ([row.moved / row.seconds[quartile] * 1e-9 for row in results.rows] for quartile in (2, 0))
        axes.fill_between(sizes, low, high, color=curve.get_color(), alpha=0.2)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path)
