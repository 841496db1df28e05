"""Programs that others wrote for NumPy: ``python programs.py --npbench FOLDER`` writes build/bench/programs.md.

The folder is a checkout of github.com/spcl/npbench, whose 54 programs run as they are on tensors. Each array among the
arguments is cut along its longest axis. It takes half an hour at size S, because some programs do not end.

A program runs in a job of its own, beside NumPy on one core and JAX in its own version of the program, one after the
other. The values of the first call are compared with NumPy's. They are *right* if they differ by rounding only, and
*wrong* otherwise; but *chaotic* if NumPy's own differ as well when its arguments change by rounding. A program is
*refused* if it raises an error, and has *not ended* if its job takes longer than ``--seconds``. The page has the
median of the next calls, or the time of the first one if it takes long.

With ``--script`` the programs run by ``run --numpy`` instead, and print their values. What they print is compared with
what NumPy prints, letter by letter, in build/bench/programs_script.md; where random numbers are drawn, which are not
NumPy's, with what one rank prints.
"""

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pages import options_of, written
from report import number, table

from jobs import Setting, environment, launcher

TOLERANCES = {"f": 2e-3, "F": 2e-3}
"""How much values may differ, by the type of elements, if not by 1e-6: sums in another order round otherwise."""


class Outcome(NamedTuple):
    """What became of a program: right, wrong, chaotic, refused or not ended; why, its seconds, and its values."""

    verdict: str
    why: str = ""
    seconds: float = math.nan
    values: tuple[Any, ...] = ()


def command_of(library: str, name: str, given: argparse.Namespace, ranks: int, *more: str) -> list[str]:
    """Return the command that runs a program in a library, on this many ranks of an MPI; without one for 0."""
    path = str(Path(__file__).with_name("programs_one.py"))
    begin = [*(launcher(ranks) if ranks else []), sys.executable, path]
    return [*begin, *more, library, str(given.npbench.resolve()), name, given.size]


def job(command: list[str], ranks: int, seconds: float) -> subprocess.CompletedProcess[str]:
    """Return what a job did; the launcher ends one that takes too long. Ranks that wait sleep if cores are few."""
    env = environment(Setting(ranks, True)) | {"MPIEXEC_TIMEOUT": str(math.ceil(seconds))}
    if ranks > len(os.sched_getaffinity(0)):
        env["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"
    later = seconds + (20 if ranks else 0)
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=later, check=False
    )


def outcome(library: str, name: str, given: argparse.Namespace, ranks: int = 0, *more: str) -> Outcome:
    """Return what becomes of a program in a library; *more* are options of `programs_one.py`."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "values.npz")
        limits = ["--rounds", str(given.rounds), "--seconds", str(given.seconds), *more]
        try:
            ended = job([*command_of(library, name, given, ranks, *limits), str(output)], ranks, given.seconds)
        except subprocess.TimeoutExpired:
            return Outcome("not ended")
        if not output.exists():
            said = [*ended.stderr.strip().splitlines(), *ended.stdout.strip().splitlines()]
            return Outcome("not ended") if timed_out(ended) else Outcome("refused", said[-1] if said else "it fails")
        with np.load(output) as found:
            if "error" in found:
                return Outcome("refused", str(found["error"]))
            seconds = found["seconds"].tolist()
            values = tuple(found[key] for key in found if key != "seconds")
    return Outcome("right", seconds=statistics.median(seconds[1:] or seconds), values=values)


def timed_out(ended: subprocess.CompletedProcess[str]) -> bool:
    """Return whether the launcher ended the job because it took too long."""
    return bool(re.search("(?i)time(d )?out|MPIEXEC_TIMEOUT", ended.stdout + ended.stderr))


def differ(ours: tuple[Any, ...], numpys: tuple[Any, ...]) -> str:
    """Return how values differ by more than rounding; nothing if they do not."""
    if len(ours) != len(numpys):
        return f"{len(ours)} results, NumPy {len(numpys)}"
    for a, b in zip(ours, numpys, strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{a.dtype} of shape {a.shape}, NumPy {b.dtype} of shape {b.shape}"
        within, largest = TOLERANCES.get(b.dtype.char, 1e-6), np.max(abs(b), where=np.isfinite(b), initial=0)
        if not np.allclose(a, b, within, within * largest / 100, equal_nan=True):
            return f"by {number(float(np.nanmax(abs(a - b))))} at most, where NumPy has {number(float(largest))}"
    return ""


def outcomes(name: str, given: argparse.Namespace) -> dict[str, Outcome]:
    """Return what becomes of a program: in NumPy, on each number of ranks, and in JAX."""
    found = {"NumPy": outcome("NumPy", name, given)}
    numpys = found["NumPy"]
    for ranks in given.ranks:
        ours = outcome("meshcomm", name, given, ranks)
        why = differ(ours.values, numpys.values) if (ours.verdict, numpys.verdict) == ("right", "right") else ""
        found[str(ranks)] = ours._replace(verdict="wrong", why=why) if why else ours
        if why and differ(outcome("NumPy", name, given, 0, "--nudged").values, numpys.values):
            found[str(ranks)] = ours._replace(verdict="chaotic", why=why)
    if not given.alone:
        found["JAX"] = outcome("JAX", name, given)
    return found


def row(name: str, found: dict[str, Outcome]) -> list[str]:
    """Return the row of a program."""
    numpys = found["NumPy"].seconds
    cells = [name]
    for library, (verdict, _, seconds, _) in found.items():
        said = verdict if math.isnan(seconds) else number(seconds * 1e3)
        if library.isdigit() and seconds > 0:
            said = f"{verdict} {said} ({number(seconds / numpys)})"
        cells.append("-" if (library, verdict) == ("JAX", "refused") else said)
    return cells


def named(library: str) -> str:
    """Return the name of a library, or of a number of ranks."""
    return f"{library} rank{'s' * (library != '1')}" if library.isdigit() else library


def summary(found: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    """Yield what the programs have in common, and why some are wrong or refused."""
    for library in next(iter(found.values())):
        pairs = [(each[library], each["NumPy"].seconds) for each in found.values()]
        ratios = [math.log(one.seconds / base) for one, base in pairs if one.seconds > 0 and base > 0]
        counts = Counter(one.verdict for one, _ in pairs)
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        mean = f"; time / NumPy {number(math.exp(statistics.mean(ratios)))} (geometric mean)" if ratios else ""
        yield f"- {named(library)}: {said}{mean}"
    for name, each in found.items():
        for library, one in each.items():
            if one.why and library.isdigit():
                yield f"- {name}, {named(library)}, {one.verdict}: {one.why}"


def profile(name: str, given: argparse.Namespace, ranks: int) -> str:
    """Return where the time of a program goes on rank 0, in a third of the time limit."""
    command = command_of("meshcomm", name, given, ranks, "--profile", str(given.seconds / 3))
    ended = job([*command, os.devnull], ranks, given.seconds)
    return f"\n{name}, {named(str(ranks))}\n{ended.stdout}"


def printed(folder: str, name: str, given: argparse.Namespace, ranks: int) -> str:
    """Return what a program prints as a script: on NumPy, or on *ranks* by ``run --numpy``; "" if it fails."""
    begin = [*launcher(ranks), sys.executable, "-m", "meshcomm", "run", "--numpy"] if ranks else [sys.executable]
    command = [*begin, str(Path(folder, "programs_script.py")), name, given.size]
    try:
        ended = job(command, ranks, given.seconds)
    except subprocess.TimeoutExpired:
        return ""
    return "" if ended.returncode else ended.stdout


def script_row(folder: str, name: str, given: argparse.Namespace) -> list[str]:
    """Return the row of a program that runs as a script."""
    texts = [printed(folder, name, given, ranks) for ranks in (0, *given.ranks)]
    info = json.loads(Path(folder, "bench_info", f"{name}.json").read_text("utf-8"))["benchmark"]
    maker = Path(folder, "npbench", "benchmarks", info["relative_path"], f"{info['module_name']}.py")
    draws = "random" in maker.read_text("utf-8")
    base, kind = (texts[1], "random, same") if draws else (texts[0], "same")
    return [name, *("fails" if not text else kind if text == base else "DIFFERS" for text in texts[1:])]


def scripts(names: list[str], given: argparse.Namespace) -> None:
    """Run the programs as scripts, and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        for folder_name in ("npbench", "bench_info"):
            shutil.copytree(given.npbench / folder_name, Path(folder, folder_name))
        shutil.copy(Path(__file__).with_name("programs_script.py"), folder)
        rows = []
        for name in names:
            rows.append(script_row(folder, name, given))
            print(*rows[-1], sep="  ", flush=True)
    written("programs_script", table(["", *(named(str(each)) for each in given.ranks)], rows), given)


def options() -> argparse.Namespace:
    """Return the options of the command."""
    more: dict[str, dict[str, Any]] = {
        "npbench": {"type": Path, "required": True, "help": "a checkout of github.com/spcl/npbench"},
        "ranks": {"type": int, "nargs": "+", "default": [1, 2, 3]},
        "size": {"choices": ["S", "M", "L", "paper"], "default": "S"},
        "seconds": {"type": float, "default": 60.0, "help": "how long a job may take"},
        "programs": {"default": "", "help": "regular expression: only programs with a matching name"},
        "alone": {"action": "store_true", "help": "without JAX"},
        "script": {"action": "store_true", "help": "what they print by run --numpy, compared with NumPy"},
        "profile": {"action": "store_true", "help": "print what takes the time of programs that do not end"},
    }
    return options_of(__doc__ or "", 5, **more)


def main() -> None:
    """Run the programs and write the page."""
    given = options()
    names = sorted(path.stem for path in (given.npbench / "bench_info").glob("*.json"))
    if not names:
        raise SystemExit(f"{given.npbench} is no checkout of github.com/spcl/npbench: it has no bench_info/*.json")
    names = [*filter(re.compile(given.programs).search, names)]
    if given.script:
        scripts(names, given)
        return
    found = {}
    for name in names:
        found[name] = outcomes(name, given)
        print(*row(name, found[name]), sep="  ", flush=True)
    ranks = [f"{named(str(each))}, ms (/ NumPy)" for each in given.ranks]
    header = ["", "NumPy, ms", *ranks, *([] if given.alone else ["JAX, ms"])]
    rows = [row(name, each) for name, each in found.items()]
    written("programs", [*table(header, rows), *summary(found)], given)
    for name, each in found.items() if given.profile else ():
        for library, one in each.items():
            if library.isdigit() and one.verdict == "not ended":
                print(profile(name, given, int(library)), flush=True)


if __name__ == "__main__":
    main()
