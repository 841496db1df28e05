"""Compares two commits of meshcomm: ``python benchmarks/compare.py COMMIT``, or ``make bench-compare BASE=COMMIT``.

Three MPI jobs take turns: two of the old commit and one of the new. So all three see the same noise, and the two equal
ones show how large it is. Only one job runs at a time; the other two sleep. A row counts as slower only if it is
beyond the noise twice, the second time in new processes. The exit status is then 1.

Only public names of meshcomm are used, so that any commit can be compared with any other. The report is
build/compare/report.md. Ratios are new / old: less is better.
"""

import argparse
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from cases import MIB, Case, comparison
from report import number, quartiles, table

from jobs import Failed, Job, Setting

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "compare"
SIDES = ("old", "again", "new")  # again: the old commit, a second time
TURN = 0.1  # seconds that a way runs in a turn, if one call takes less
MAX_CALLS = 30  # in a turn
MAX_CASE_SECONDS = 30.0  # seconds: after this no round of a case begins, once it had MIN_ROUNDS
MIN_ROUNDS = 3
MIN_NOISE = 0.03  # the smallest difference that counts, as a fraction of the time


class Row(NamedTuple):
    """One way to do a case in one setting, and what the three sides took.

    *seconds* has the median of each turn, *faults* the page faults of each call.
    """

    setting: Setting
    case: Case
    way: str
    seconds: dict[str, list[float]]
    faults: dict[str, list[float]]

    @property
    def ratios(self) -> list[float]:
        """New / old of each round; old is the (geometric) mean of both old jobs."""
        old, again, new = (self.seconds[side] for side in SIDES)
        return [n / math.sqrt(a * b) for a, b, n in zip(old, again, new, strict=True)]

    @property
    def ratio(self) -> float:
        """New / old."""
        return statistics.median(self.ratios)

    @property
    def difference(self) -> float:
        """How much the two old jobs differ: the logarithm of their ratio."""
        old, again = self.seconds["old"], self.seconds["again"]
        return abs(math.log(statistics.median([b / a for a, b in zip(old, again, strict=True)])))

    @property
    def noise(self) -> float:
        """How much chance may change the ratio, as a logarithm, judged by this row alone."""
        _, low, high = quartiles([math.log(ratio) for ratio in self.ratios])
        # 95 % of the medians of equal data lie within 1.57 quartile distances / √n (McGill, Tukey, Larsen 1978).
        return max(MIN_NOISE, self.difference, 1.57 * (high - low) / math.sqrt(len(self.ratios)))

    @property
    def kind(self) -> tuple[Setting, bool]:
        """What rows have in common whose noise is alike: the setting, and small or large arrays."""
        return self.setting, self.case.nbytes < 4 * MIB


def limits(rows: list[Row]) -> list[float]:
    """Return for each row the ratio beyond which it is no noise: by its own noise and that of rows of its kind."""
    by_kind: dict[tuple[Setting, bool], list[float]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row.difference)
    usual = {kind: sorted(found)[int(0.9 * (len(found) - 1))] for kind, found in by_kind.items()}
    return [math.exp(max(row.noise, usual[row.kind])) for row in rows]


# Builds


def built(name: str, side: str) -> Path:
    """Return a directory with the package of a commit, or of a directory of sources.

    Built as pip installs it, in a copy of the sources: of a directory all files that git does not ignore.
    """
    if Path(name).is_dir():
        tree = BUILD / "sources"
        copy_sources(Path(name), tree)
        return installed(tree, BUILD / f"{side}-sources")
    commit = git("rev-parse", "--verify", f"{name}^{{commit}}").strip()
    into = BUILD / commit[:12]
    if (into / "meshcomm").is_dir():
        return into
    tree = BUILD / "sources"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    archive = subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(tree)], stdin=archive.stdout, check=True)
    if archive.wait():
        raise SystemExit(f"git archive of {name} failed")
    return installed(tree, into)


def copy_sources(source: Path, tree: Path) -> None:
    """Copy all files that git knows or does not ignore."""
    shutil.rmtree(tree, ignore_errors=True)
    for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=source).split("\0"):
        file = source / name
        if name and file.is_file():  # a deleted file is still listed
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, tree / name)


def installed(tree: Path, into: Path) -> Path:
    """Build the package of *tree* and return *into*, which then holds it and nothing else."""
    print(f"Building {into.name}: this takes a minute", flush=True)
    shutil.rmtree(into, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    half = into.with_name(into.name + ".part")  # of a build that did not end
    shutil.rmtree(half, ignore_errors=True)
    subprocess.run([*pip, "--target", str(half), str(tree)], check=True, stdin=subprocess.DEVNULL)
    half.rename(into)
    return into


def git(*arguments: str, cwd: Path = ROOT) -> str:
    """Return what git says."""
    found = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {found.stderr.strip()}")
    return found.stdout


# Turns


class Jobs:
    """The jobs of the three sides in one setting; each starts when it is first used."""

    def __init__(self, roots: dict[str, Path], setting: Setting) -> None:
        self._roots, self._setting = roots, setting
        self._running: dict[str, Job] = {}

    def __getitem__(self, side: str) -> Job:
        if side not in self._running:
            self._running[side] = Job.of_turns(side, self._roots[side], self._setting)
        return self._running[side]

    def end(self) -> None:
        """End all jobs."""
        for job in self._running.values():
            job.end()
        self._running.clear()


def measured(case: Case, setting: Setting, jobs: Jobs, rounds: int) -> tuple[list[Row], list[str]]:
    """Return the rows of a case, and what could not be measured. ``Failed`` if a job ends or hangs."""
    apart = 3 * memory(case) > available() // 2  # too large for three jobs: then each turn has a job of its own
    prepared = {}
    for side in SIDES:
        prepared[side] = jobs[side].ask("prepare", case.name)
        if apart:
            jobs.end()
    fails = {way: f"{side}: {way}: {why}" for side in reversed(SIDES) for way, why in prepared[side]["cannot"].items()}
    cannot = list(fails.values())  # what fails in both is told of the old one: nothing got worse
    seconds = [prepared[side]["seconds"] for side in SIDES]
    ways = [way for way in seconds[0] if all(way in found for found in seconds)]
    calls = {way: calls_of_a_turn(statistics.median(found[way] for found in seconds)) for way in ways}
    begin = time.monotonic()
    times: dict[str, dict[str, list[float]]] = {way: {side: [] for side in SIDES} for way in ways}
    faults: dict[str, dict[str, list[float]]] = {way: {side: [] for side in SIDES} for way in ways}
    for turn in range(MIN_ROUNDS if apart else rounds):
        if turn >= MIN_ROUNDS and time.monotonic() - begin > MAX_CASE_SECONDS:
            break
        for side in (*SIDES[turn % 3 :], *SIDES[: turn % 3]):
            if apart:
                jobs[side].ask("prepare", case.name)
            for way, found in jobs[side].ask("turn", calls).items():
                times[way][side].append(statistics.median(found["seconds"]))
                faults[way][side] += found["faults"]
            if apart:
                jobs.end()
    wrong = [] if apart else [f"new: WRONG RESULTS: {way}" for way in jobs["new"].ask("verify")]
    if not apart:
        for side in SIDES:
            jobs[side].ask("drop")
    return [Row(setting, case, way, times[way], faults[way]) for way in ways], cannot + wrong


def calls_of_a_turn(seconds: float) -> int:
    """Return how often a way runs in a turn.

    >>> calls_of_a_turn(1e-6), calls_of_a_turn(0.02), calls_of_a_turn(3.0)
    (30, 5, 1)
    """
    return max(1, min(MAX_CALLS, round(TURN / seconds)))


def memory(case: Case) -> int:
    """Return about how many bytes one job holds for a loop; the other cases are small."""
    return (case.live + 1) * case.nbytes


def available() -> int:
    """Return the bytes of memory that are free now, as Linux tells it, or else half of all."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def wanted(case: Case, setting: Setting) -> bool:
    """Return whether a case is measured in a setting: over MPI only loops of 3 blocks up to 34 MiB."""
    in_memory = memory(case) < 0.7 * available()
    return in_memory and (
        setting.shared or not case.live or (case.live == 3 and case.nbytes <= 34 * MIB * setting.ranks)
    )


class Comparison:
    """All rows, and all that went wrong."""

    def __init__(self, roots: dict[str, Path], rounds: int) -> None:
        self._roots, self._rounds = roots, rounds
        self.rows: list[Row] = []
        self.slower: list[Row] = []
        self.problems: list[str] = []
        self.new_fails = False

    def run(self, setting: Setting, cases: list[Case]) -> None:
        """Measure cases in a setting, and once more those that seem slower."""
        rows = list(self._rows(setting, cases, self._rounds))
        suspects = [row for row, limit in zip(rows, limits(rows), strict=True) if row.ratio > limit]
        names = {row.case.name for row in suspects}
        if names:
            print(f"  {len(suspects)} rows seem slower: their cases run again, in new processes", flush=True)
        again = list(self._rows(setting, [case for case in cases if case.name in names], 2 * self._rounds))
        # The second time counts: the first ones are those that chance made slow.
        second = {(row.case.name, row.way): row for row in again}
        self.rows += [second.get((row.case.name, row.way), row) for row in rows]
        chosen = [second[key] for row in suspects if (key := (row.case.name, row.way)) in second]
        most = dict(zip(map(id, again), limits(again), strict=True))
        self.slower += [row for row in chosen if row.ratio > most[id(row)]]

    def _rows(self, setting: Setting, cases: list[Case], rounds: int) -> Iterator[Row]:
        jobs = Jobs(self._roots, setting)
        try:
            for count, case in enumerate(cases, 1):
                begin = time.monotonic()
                try:
                    rows, problems = measured(case, setting, jobs, rounds)
                except Failed as error:
                    rows, problems = [], [str(error)]
                    jobs.end()
                self.new_fails |= any(problem.startswith("new:") for problem in problems)
                self.problems += [f"{setting}: {case.name}: {problem}" for problem in problems]
                found = ", ".join(f"{row.ratio:.2f}" for row in rows) or problems
                seconds = time.monotonic() - begin
                print(f"  {setting}, {count} of {len(cases)}: {case.name}: {found}, {seconds:.0f} s", flush=True)
                yield from rows
        finally:
            jobs.end()


# Report


def page(comparison: Comparison, title: str) -> Iterator[str]:
    """Yield the lines of the report."""
    rows = comparison.rows
    yield f"# {title}\n"
    yield "Times are medians in ms. *new / old* is the median over rounds; chance may move it by *noise* from 1.\n"
    order = sorted(zip(rows, limits(rows), strict=True), key=lambda pair: -pair[0].ratio)
    cells = []
    for row, limit in order:
        slower, faster = any(row is other for other in comparison.slower), row.ratio < 1 / limit
        times = [number(1e3 * statistics.median(row.seconds[side])) for side in ("old", "new")]
        verdict = "**slower**" if slower else "faster, seen once" if faster else ""
        cells.append(
            [str(row.setting), row.case.name, row.way, *times, f"{row.ratio:.3f}", f"±{limit - 1:.0%}", verdict]
        )
    yield from table(["setting", "case", "way", "old", "new", "new / old", "noise", ""], cells)
    yield from loops(rows)
    yield from starts(rows)
    if comparison.problems:
        yield "## Not measured, or wrong\n"
        yield from (f"- {problem}" for problem in comparison.problems)
        yield ""
    yield summary(comparison)


def loops(rows: list[Row]) -> Iterator[str]:
    """Yield the page faults of loops."""
    cells = []
    for row in rows:
        if row.case.live:
            faults = (number(statistics.mean(row.faults[side])) for side in ("old", "new"))
            times = (number(1e3 * statistics.median(row.seconds[side])) for side in ("old", "new"))
            cells.append([str(row.setting), row.case.name, *times, *faults])
    if cells:
        yield "## Page faults in each turn of a loop, after the second: the goal is 0\n"
        yield from table(["setting", "loop", "old, ms", "new, ms", "old, faults", "new, faults"], cells)


def starts(rows: list[Row]) -> Iterator[str]:
    """Yield how much longer than a relayout start_relayout and wait take."""
    for plain, other in pairwise(rows):
        if plain.case.start and plain.case == other.case and other.way == "meshcomm, start_relayout":
            found = []
            for side in ("old", "new"):
                pairs = zip(other.seconds[side], plain.seconds[side], strict=True)
                found.append(number(statistics.median([a / b for a, b in pairs])))
            goal = "; the goal is 2.5" if plain.setting.ranks == 2 and plain.setting.shared else ""
            told = f"old {found[0]}, new {found[1]}{goal}"
            yield f"- {plain.setting}, {plain.case.name}: start_relayout and wait / relayout: {told}"
    yield ""


def summary(comparison: Comparison) -> str:
    """Return the verdict."""
    differences = quartiles([row.difference for row in comparison.rows]) if comparison.rows else (0, 0, 0)
    noise = f"Old against itself: median {differences[0]:.1%}, upper quartile {differences[2]:.1%}."
    return f"{noise} {len(comparison.rows)} rows, {len(comparison.slower)} slower beyond noise."


def arguments() -> argparse.Namespace:
    """Return what the user wants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the old commit, or a directory of sources")
    parser.add_argument("--new", default=str(ROOT), help="the new commit; by default the files here, committed or not")
    parser.add_argument("--quick", action="store_true", help="few cases and rounds")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--over", choices=["memory", "mpi"], help="only over shared memory, or only over MPI")
    parser.add_argument("--cases", default="", help="regular expression: only cases whose names it finds")
    parser.add_argument("--rounds", type=int, help="turns of each job: 5 with --quick, else 7")
    return parser.parse_args()


def main() -> int:
    """Compare, write the report, and return the exit status."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that the jobs end first
    if os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        print(f"This machine is busy (load {os.getloadavg()[0]:.1f}): small differences say nothing.", flush=True)
    old, new = built(options.base, "old"), built(options.new, "new")
    begin = time.monotonic()
    found = Comparison({"old": old, "again": old, "new": new}, options.rounds or (5 if options.quick else 7))
    shared = {None: (True, False), "memory": (True,), "mpi": (False,)}[options.over]
    for setting in (Setting(ranks, over) for over in shared for ranks in options.ranks):
        cases = [case for case in comparison(setting.ranks, options.quick) if re.search(options.cases, case.name)]
        found.run(setting, [case for case in cases if wanted(case, setting)])
    cpu = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end"
    lines = list(page(found, f"{new.name} (new) against {old.name} (old), {cpu}"))
    (BUILD / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    minutes = (time.monotonic() - begin) / 60
    print("\n".join(lines), f"\n{minutes:.1f} minutes; report: {BUILD / 'report.md'}")
    return int(bool(found.slower) or found.new_fails or not found.rows)


if __name__ == "__main__":
    sys.exit(main())
