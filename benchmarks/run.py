"""Benchmarks: ``python benchmarks/run.py`` measures on 2, 4 and 8 ranks and writes build/bench/report.md and a plot.

`cases.py` lists the cases, `peers.py` and `devices.py` the contenders. `measure.py` measures them, and `report.py`
writes the page. Each number of ranks is a job of its own. Its mpiexec is that of the environment variable MPIEXEC, the
one beside this Python, or the one on PATH. All installed packages are measured: ``pip install -e ".[bench]"`` installs
them all.
"""

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import report
from contender import layout

import meshcomm as mc
from jobs import launcher

HERE = Path(__file__).resolve().parent
PEERS = {"mpi4py_fft": "mpi4py-fft", "heat": "Heat", "torch": "PyTorch", "jax": "JAX"}


def arguments() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--full", action="store_true", help="all cases on all numbers of ranks, all sizes, more rounds"
    )
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        default=[4, 2, 8],
        help="numbers of ranks; the first also runs the cases of the table",
    )
    parser.add_argument("--cases", default="", help="regular expression: only cases with a matching name")
    parser.add_argument("--peers", default="", help="regular expression: only contenders with a matching name")
    parser.add_argument("--output", type=Path, default=HERE.parent / "build" / "bench", help="directory")
    return parser.parse_args()


def jobs(options: argparse.Namespace) -> list[tuple[int, list[str]]]:
    """Return the jobs: the number of ranks (0 for a process without MPI) and the arguments of measure.py."""
    first, *others = options.ranks
    half = [] if options.full else ["--only", "scaling"]
    listed = [(first, []), *((n, half) for n in others)]
    if importlib.util.find_spec("jax"):
        listed += [(0, ["--devices", str(n)]) for n in (options.ranks if options.full else [first])]
    common = ["--cases", options.cases, "--peers", options.peers] + ["--full"] * options.full
    return [(n, [*args, *common]) for n, args in listed]


def minutes(options: argparse.Namespace, absent: list[str]) -> int:
    """Return the minutes that all jobs take, as measured on two cores."""
    always, slow, jax = (1200, 1200, 500) if options.full else (100, 120, 70)
    seconds = always + slow * ("PyTorch" not in absent) + jax * ("JAX" not in absent)
    return round(seconds / 60)


def start(ranks: int, args: list[str], file: Path) -> bool:
    """Measure in new processes; return whether they succeeded."""
    program = [str(HERE / "measure.py"), *args, "--output", str(file)]
    python = [sys.executable, "-W", "ignore"]  # hide the warnings of other packages
    command = [*launcher(ranks), *python, "-m", "mpi4py", *program] if ranks else [*python, *program]
    limit = "7200" if "--full" in args else "900"  # seconds, in case a contender hangs
    env = os.environ | {"OMP_NUM_THREADS": "1", "MPIEXEC_TIMEOUT": limit}
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, check=False).returncode == 0


def planning() -> str:
    """Return the time in which one rank of 4,096 plans: the median over several shapes, so that no cache helps."""
    mesh = mc.Mesh(range(4096), [("x", 64), ("y", 64)])
    found = []
    for source, target in ((["x", "y", "-"], ["-", "x", "y"]), (["x", "-", "y"], ["y", "-", "x"])):
        times = []
        for n in range(1024, 1024 * 8, 1024):
            begin = time.perf_counter()
            plan = mc.plan_relayout((n, 4096, 64), float, layout(source, mesh), layout(target, mesh))
            for step in plan.steps:
                step.sends(7), step.receives(7), step.group_of(7)
            times.append(time.perf_counter() - begin)
        found.append(f"{','.join(source)} → {','.join(target)} {statistics.median(times) * 1e3:.2f} ms")
    return "; ".join(found)


SETTING = re.compile(r"(MESHCOMM_|MPIR_CVAR_|OMPI_MCA_|PRTE_MCA_|UCX_|XLA_FLAGS)")


def facts() -> dict[str, str]:
    """Return the first lines of the page."""
    settings = [f"{name}={text}" for name, text in sorted(os.environ.items()) if SETTING.match(name)]
    return {
        "measured": time.strftime("%Y-%m-%d %H:%M"),
        "meshcomm": f"{mc.__version__}, {revision()}",
        "settings": ", ".join(["OMP_NUM_THREADS=1", *settings]),
        "planning one of 4,096 ranks": planning(),
    }


def revision() -> str:
    """Return the commit of the sources in a clone."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown commit"


def main() -> int:
    """Measure and write; return the exit status."""
    options = arguments()
    absent = [name for package, name in PEERS.items() if not importlib.util.find_spec(package)]
    more = "" if options.full else "; --full, for all sizes to 512 MiB, ten times that"
    print(f"This takes about {minutes(options, absent)} minutes if nothing else runs here{more}.")
    if os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        print(f"This machine is busy (load {os.getloadavg()[0]:.1f}): figures for small arrays mean nothing.")
    if absent:
        print(f'Not installed: {", ".join(absent)}. pip install -e ".[bench]" installs them all.')
    sys.stdout.flush()
    options.output.mkdir(parents=True, exist_ok=True)
    for old in options.output.glob("figures-*.json"):
        old.unlink()
    (options.output / "facts.json").write_text(json.dumps(facts()), encoding="utf-8")
    failed, begin = [], time.monotonic()
    for number, (ranks, args) in enumerate(jobs(options), 1):
        went = start(ranks, args, options.output / f"figures-{number}.json")
        if not went:
            failed.append(f"{ranks} ranks" if ranks else "JAX")
    print("\n".join(report.write(options.output)), f"\n{(time.monotonic() - begin) / 60:.1f} minutes")
    if failed:
        print(f"Failed, and missing from the page: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
