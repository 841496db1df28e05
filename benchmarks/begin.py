"""How long programs take to begin: ``python benchmarks/begin.py`` writes build/bench/begin.md.

It takes about a minute. New processes take turns, in rounds; what they read is in the cache of the system. The page
has medians and quartiles of the times of whole processes. For imports it also has the ratio to NumPy's import, both
without the time of a bare Python.
"""

import statistics
import subprocess
import sys
import time

from pages import options_of
from report import number, spread, table

from jobs import launcher

RANKS = 4
USED = "meshcomm.create_mesh, meshcomm.Layout, meshcomm.distribute, meshcomm.relayout"
IMPORTS = {
    "python": "pass",
    "numpy": "import numpy",
    "meshcomm": "import meshcomm",
    "numpy, meshcomm": "import numpy, meshcomm",
    "the names of a relayout": f"import meshcomm; {USED}",
    "all public names": "from meshcomm import *",
}
JOBS = {
    f"mpi4py and numpy, {RANKS} ranks": ["-c", "import mpi4py.MPI, numpy"],
    f"info, {RANKS} ranks": ["-m", "meshcomm", "info"],
}


def commands() -> dict[str, list[str]]:
    """Return the command of each contender."""
    found = {name: [sys.executable, "-c", code] for name, code in IMPORTS.items()}
    return found | {name: [*launcher(RANKS), sys.executable, *args] for name, args in JOBS.items()}


def seconds(command: list[str]) -> float:
    """Return the seconds of one process, or job."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measured(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each contender in each round, after one that counts for nothing."""
    every = commands()
    times: dict[str, list[float]] = {name: [] for name in every}
    for turn in range(rounds + 1):
        for name, command in every.items():
            taken = seconds(command)
            if turn:
                times[name].append(taken)
    return times


def page(times: dict[str, list[float]]) -> str:
    """Return the page."""
    middle = {name: statistics.median(each) for name, each in times.items()}
    numpy = middle["numpy"] - middle["python"]
    rows = []
    for name, each in times.items():
        ratio = number((middle[name] - middle["python"]) / numpy) if name in IMPORTS else ""
        rows.append([name, spread(each, 1e3), ratio])
    return "\n".join(["# How programs begin", "", *table(["process", "ms", "import × NumPy's"], rows), ""])


def main() -> None:
    """Measure, and write the page."""
    options = options_of(__doc__ or "", 15)
    options.output.mkdir(parents=True, exist_ok=True)
    text = page(measured(options.rounds))
    (options.output / "begin.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
