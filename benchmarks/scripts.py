"""When ranks help a script of NumPy: ``python scripts.py --npbench FOLDER`` writes build/bench/scripts.md.

The folder is a checkout of github.com/spcl/npbench. Its 54 programs run as scripts, under plain ``python`` and under
``run --numpy`` on some numbers of ranks, in turns: one after the other in each round. A job calls its program several
times; its time is that of the shortest call but the first. Where one call takes 10 s, the first one counts. The page
has the medians of the ratios to NumPy's time in the same round; a program whose job takes longer than ``--seconds``
has *not ended*. Values whose sum differs between NumPy and ranks, or for programs that draw random numbers between one
number of ranks and others, are *wrong*: `programs.py --script` compares all of them.

At the end a Jacobi step by slices runs beside the same with mpi4py, by hand. All sizes take hours: ``--sizes M`` and
``--programs jacobi`` run a part.
"""

import argparse
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pages import options_of, written
from programs import job, named, timed_out
from report import number, table

from jobs import launcher

HERE = Path(__file__).parent
CALLS, LONG = 9, 10.0
"""Calls after the first one, at most; and seconds of a call, from which on there is only the first one."""


class Outcome(NamedTuple):
    """What became of a job: right, not ended, fails or wrong; the seconds of its shortest call, and a sum."""

    verdict: str
    seconds: float = math.nan
    total: float = math.nan


def outcome(script: Path, arguments: list[str], ranks: int, seconds: float, by_hand: bool = False) -> Outcome:
    """Return what becomes of a script: on plain NumPy for 0 *ranks*, else by ``run --numpy``, or as it is."""
    ours = ["-m", "meshcomm", "run", "--numpy"] if ranks and not by_hand else []
    begin = launcher(ranks) if ranks else []
    try:
        ended = job([*begin, sys.executable, *ours, str(script), *arguments], ranks, seconds)
    except subprocess.TimeoutExpired:
        return Outcome("not ended")
    if ended.returncode:
        return Outcome("not ended" if timed_out(ended) else "fails")
    found = json.loads(ended.stdout.strip().splitlines()[-1])
    return Outcome("right", min(found["seconds"]), found["sum"])


def checked(outcomes: Mapping[int, Outcome], draws: bool) -> dict[int, Outcome]:
    """Return the outcomes by numbers of ranks; those whose sum differs from that of the first one are wrong.

    NumPy, by number 0, does not count where a program *draws* random numbers: large draws are not NumPy's.
    """
    base = next((one.total for ranks, one in outcomes.items() if (ranks or not draws) and one.verdict == "right"), 0.0)
    same = {
        ranks: (draws and not ranks) or math.isclose(one.total, base, rel_tol=1e-6) for ranks, one in outcomes.items()
    }
    return {
        ranks: one if same[ranks] or one.verdict != "right" else one._replace(verdict="wrong")
        for ranks, one in outcomes.items()
    }


def measured(
    script: Path, arguments: list[str], given: argparse.Namespace, draws: bool = False
) -> list[dict[int, Outcome]]:
    """Return what becomes of a script in each round, by numbers of ranks; 0 is NumPy."""
    first = outcome(script, [*arguments, "0"], 0, given.seconds)
    if first.verdict != "right":
        return [{0: first}]
    calls = 0 if first.seconds > LONG else max(1, min(CALLS, int(1 / first.seconds)))
    left, rounds = [0, *given.ranks], []
    for _ in range(given.rounds):
        found = {ranks: outcome(script, [*arguments, str(calls)], ranks, given.seconds) for ranks in left}
        rounds.append(checked(found, draws))
        left = [ranks for ranks in left if rounds[-1][ranks].verdict == "right"]
    return rounds


def ratio(rounds: list[dict[int, Outcome]], ranks: int) -> float:
    """Return the median over rounds of the time on *ranks* over NumPy's; NaN if the program was not right."""
    if not all(ranks in each and each[ranks].verdict == "right" for each in rounds):
        return math.nan
    return statistics.median(each[ranks].seconds / each[0].seconds for each in rounds)


def row(name: str, rounds: list[dict[int, Outcome]], given: argparse.Namespace) -> list[str]:
    """Return the row of a program."""
    numpys = [each[0].seconds for each in rounds]
    cells = [name, rounds[0][0].verdict if math.isnan(numpys[0]) else number(statistics.median(numpys) * 1e3)]
    for ranks in given.ranks:
        over = ratio(rounds, ranks)
        verdicts = (each[ranks].verdict for each in rounds if ranks in each)
        cells.append(next((each for each in verdicts if each != "right"), "-") if math.isnan(over) else number(over))
    return cells


def summary(found: Mapping[str, list[dict[int, Outcome]]], given: argparse.Namespace) -> Iterator[str]:
    """Yield for each number of ranks the geometric mean of all ratios to NumPy, and the worst one."""
    for ranks in given.ranks:
        ratios = {name: ratio(rounds, ranks) for name, rounds in found.items()}
        known = {name: x for name, x in ratios.items() if not math.isnan(x)}
        if known:
            mean, worst = math.exp(statistics.mean(map(math.log, known.values()))), max(known, key=known.__getitem__)
            faster = sum(x < 1 for x in known.values())
            said = f"{number(mean)} (geometric mean), worst {number(known[worst])} ({worst}), {faster} faster"
            yield f"- {named(str(ranks))}, {len(known)} programs: time / NumPy {said}"


def programs(folder: Path, names: list[str], size: str, given: argparse.Namespace) -> list[str]:
    """Return the part of the page about one size of npbench's programs."""
    found = {}
    for name in names:
        info = json.loads((folder / "bench_info" / f"{name}.json").read_text("utf-8"))["benchmark"]
        maker = folder / "npbench" / "benchmarks" / info["relative_path"] / f"{info['module_name']}.py"
        draws = "random" in maker.read_text("utf-8")
        found[name] = measured(folder / "scripts_program.py", [name, size], given, draws)
        print(size, *row(name, found[name], given), sep="  ", flush=True)
    header = [f"size {size}", "NumPy, ms", *(f"{named(str(each))} / NumPy" for each in given.ranks)]
    rows = [row(name, each, given) for name, each in found.items()]
    return [*table(header, rows), *summary(found, given), ""]


def jacobi(given: argparse.Namespace) -> list[str]:
    """Return the part of the page about a Jacobi step: as a script, and with mpi4py by hand."""
    arguments, header = [str(given.side), str(CALLS)], [f"Jacobi step of {given.side}²", "ms", "/ NumPy", "/ by hand"]
    times: dict[str, list[float]] = {}
    for _ in range(given.rounds):
        totals = []
        for ranks in (0, *given.ranks):
            for by_hand in (False, True) if ranks else (False,):
                script = HERE / ("scripts_by_hand.py" if by_hand else "scripts_jacobi.py")
                one = outcome(script, arguments, ranks, given.seconds, by_hand)
                name = named(str(ranks)) + ", mpi4py by hand" * by_hand if ranks else "NumPy"
                times.setdefault(name, []).append(one.seconds)
                totals.append(one.total)
        if not all(math.isclose(total, totals[0], rel_tol=1e-9) for total in totals):
            raise SystemExit(f"the Jacobi steps differ: {totals}")

    def over(name: str, base: str) -> str:
        pairs = zip(times[name], times.get(base, ()), strict=False)
        ratios = [one / other for one, other in pairs]
        return number(statistics.median(ratios)) if ratios and name != base else "-"

    rows = [
        [name, number(statistics.median(each) * 1e3), over(name, "NumPy"), over(name, f"{name}, mpi4py by hand")]
        for name, each in times.items()
    ]
    return list(table(header, rows))


def options() -> argparse.Namespace:
    """Return the options of the command."""
    return options_of(
        __doc__ or "",
        3,
        npbench={"type": Path, "required": True, "help": "a checkout of github.com/spcl/npbench"},
        ranks={"type": int, "nargs": "+", "default": [1, 2, 4]},
        sizes={"nargs": "+", "choices": ["S", "M", "L", "paper"], "default": ["S", "M", "L"]},
        seconds={"type": float, "default": 60.0, "help": "how long a job may take"},
        programs={"default": "", "help": "regular expression: only programs with a matching name"},
        side={"type": int, "default": 4096, "help": "rows and columns of the Jacobi step"},
    )


def main() -> None:
    """Run the scripts and write the page."""
    given = options()
    names = sorted(path.stem for path in (given.npbench / "bench_info").glob("*.json"))
    if not names:
        raise SystemExit(f"{given.npbench} is no checkout of github.com/spcl/npbench: it has no bench_info/*.json")
    names = [*filter(re.compile(given.programs).search, names)]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for each in ("npbench", "bench_info"):
            shutil.copytree(given.npbench / each, Path(folder, each))
        shutil.copy(HERE / "scripts_program.py", folder)
        for size in given.sizes:
            lines += programs(Path(folder), names, size, given)
    written("scripts", [*lines, *jacobi(given)], given)


if __name__ == "__main__":
    main()
