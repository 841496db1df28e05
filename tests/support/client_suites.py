"""Other people's tests on sharded tensors: ``mpiexec -n 3 python -m support.client_suites scipy``.

``make test-clients`` runs all suites. A suite is a module of support.clients, with

- ENVIRONMENT: variables to set before the package is imported
- paths(root): files of tests; *root* is the folder of the package
- takes(item): whether a test of these files belongs to the suite
- install(on_tensors): lets the tests use tensors, or else NumPy's arrays, as their array library

With ``--numpy`` the tests run on NumPy's arrays, on one process, and the names of those that pass are written to
build/clients. On tensors only these run, unless files are named, by their paths in the package. Of a test with many
cases a sample runs, and with ``--all-cases`` each one. Other arguments go to pytest.

tests/data/clients has a table for each suite: tests that fail, in groups with reasons. They must fail, and all others
must pass. Tests of a group that begins with "Not run" do not run: they would end the run. ``[0 2-4]`` are four cases
of a test, in the order of pytest, and ``[*]`` all; ``ranks=3`` means that a test fails on 3 ranks only.
"""

import json
import os
import sys
from collections import Counter, defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import Phase, settings

from meshcomm.core.failures.launchers import launched
from support.clients import cutting
from support.paths import DATA, ROOT

BUILD = ROOT / "build/clients"
INI = "[pytest]\nfilterwarnings =\n    ignore\nmarkers =\n"
MANY = 64
OWN_OPTIONS = ("--numpy", "--all-cases")
FLAGS = ("-pno:cacheprovider", "-pno:zarr", "-p", "support.patience", "-p", "support.verdicts", "--color=no", "-q")


# -- the table --------------------------------------------------------------------------------------------------------


def cases(name):
    """Return the test that a line of a table names, and the numbers of its cases, None for all.

    >>> cases("test[0 2-3]"), cases("test[*]"), cases("test")
    (('test', {0, 2, 3}), ('test', None), ('test', None))
    """
    test, bracket, numbers = name.removesuffix("]").partition("[")
    if not bracket or numbers == "*":
        return test, None
    ends = [interval.split("-") for interval in numbers.split()]
    return test, {n for interval in ends for n in range(int(interval[0]), int(interval[-1]) + 1)}


def table_of(name):
    """Return the path of the table of a suite."""
    return DATA / "clients" / f"{name}.txt"


def table(path, ranks):
    """Return the tests that a table expects to fail on *ranks* ranks: a list of (cases, reason), by name."""
    failures, reason, is_new_group = defaultdict(list), [], True
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("# "):
            reason = [*reason, line[2:]] if is_new_group else [line[2:]]
            is_new_group = True
            continue
        is_new_group = False
        if line:
            label, _, rank_counts = line.partition(" ranks=")
            if not rank_counts or str(ranks) in rank_counts.split(","):
                test, numbers = cases(label)
                failures[test].append((numbers, " ".join(reason)))
    return failures


def known_of(path, ranks, names):
    """Return those of *names*, which may end in the number of a case, that a table expects to fail."""
    known_failures = table(path, ranks)

    def fails(test, _, number):
        return any(
            numbers is None or (number and int(number) in numbers) for numbers, _ in known_failures.get(test, ())
        )

    return {name for name in names if fails(*name.removesuffix("]").partition("["))}


def has_reasons(path):
    """Return whether each group of a table begins with its reason."""
    groups = path.read_text("utf-8").split("\n\n")
    return len(groups) > 2 and all(group.startswith("# ") for group in groups)


# -- the run ----------------------------------------------------------------------------------------------------------


class Run:
    """The hooks of a run of a suite."""

    def __init__(self, name, suite, root, options):
        self.name, self.suite, self.root = name, suite, root
        self.on_tensors, self.all_cases = "--numpy" not in options, "--all-cases" in options
        self.is_whole = not {*options} - {*OWN_OPTIONS}
        self.rank, self.ranks = launched() or (0, 1)
        self.passing = BUILD / f"{name}-numpy.json"
        self.outcomes, self.errors, self.expected = {}, {}, set()

    def label(self, nodeid):
        """Return the name of a test without the folder of the package."""
        return nodeid.removeprefix(f"{self.root.name}/")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        selected = [item for item in items if self.suite.takes(item)]
        self.number_cases(selected)
        if not self.all_cases:
            selected = [item for item in selected if self.is_sampled(item.nodeid)]
        if self.on_tensors:
            if self.is_whole:
                passing = set(json.loads(self.passing.read_text("utf-8")))
                selected = [item for item in selected if self.label(item.nodeid) in passing]
            self.expect(selected)
        items[:] = selected

    def number_cases(self, items):
        """Store the number of each item among the cases of its test, and the number of cases of each test."""
        self.counts, self.numbers = Counter(), {}
        for item in items:
            test = self.label(item.nodeid).partition("[")[0]
            self.numbers[item.nodeid] = self.counts[test]
            self.counts[test] += 1

    def is_sampled(self, nodeid):
        """Return whether a case runs: of a test with many cases, about `MANY` run, always the same ones."""
        count = self.counts[self.label(nodeid).partition("[")[0]]
        return count <= MANY or crc32(nodeid.encode()) % count < MANY

    def expect(self, items):
        """Mark the tests in the table as expected failures."""
        known_failures = table(table_of(self.name), self.ranks)
        for item in items:
            for numbers, reason in known_failures.get(self.label(item.nodeid).partition("[")[0], ()):
                if numbers is None or self.numbers[item.nodeid] in numbers:
                    self.expected.add(item.nodeid)
                    run = not reason.startswith("Not run")
                    item.add_marker(pytest.mark.xfail(reason=reason, strict=True, run=run))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        np.random.seed(crc32(item.nodeid.encode()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        if call.excinfo is not None:
            text = " ".join(str(call.excinfo.value).split())[:300]
            self.errors[item.nodeid] = f"{call.excinfo.typename}: {text}"
        return (yield)

    def pytest_runtest_logreport(self, report):
        """Store the outcome that the ranks agreed on."""
        outcome = report.outcome
        if hasattr(report, "wasxfail"):  # by the table, or the others' own marks
            outcome = "expected" if report.nodeid in self.expected else "skipped"
        if report.when == "call" or outcome != "passed":
            self.outcomes[report.nodeid] = outcome
        if self.on_tensors and outcome in ("failed", "expected"):
            cutting.renew()

    def pytest_terminal_summary(self, terminalreporter):
        if not self.on_tensors and self.is_whole:
            passing_tests = [self.label(nodeid) for nodeid, outcome in self.outcomes.items() if outcome == "passed"]
            self.passing.write_text(json.dumps(passing_tests), "utf-8")
        counts = Counter(self.outcomes.values())
        total = sum(counts[outcome] for outcome in ("passed", "failed", "expected"))
        arrays = f"{self.ranks} ranks" if self.on_tensors else "NumPy's arrays"
        terminalreporter.write_line(
            f"{self.name} on {arrays}: {counts['passed']} of {total} pass ({counts['passed'] / max(total, 1):.1%}), "
            f"{counts['expected']} fail as the table says, {counts['failed']} fail, {counts['skipped']} are skipped"
        )
        # What failed, for whoever mends the table.
        failed = [nodeid for nodeid, outcome in self.outcomes.items() if outcome in ("failed", "expected")]
        lines = [f"{self.line(nodeid)}\t{self.errors.get(nodeid, 'passes on this rank')}" for nodeid in failed]
        if self.rank == 0:
            (BUILD / f"{self.name}-failures-{self.ranks}.txt").write_text("\n".join(lines) + "\n", "utf-8")

    def line(self, nodeid):
        test, bracket, _ = self.label(nodeid).partition("[")
        return f"{test}[{self.numbers[nodeid]}/{self.counts[test]}]" if bracket else test


def seed_generators():
    """Let NumPy's generators without a seed, and Hypothesis, draw the same numbers on all ranks."""
    settings.register_profile(
        "ranks", derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("ranks")
    default_rng = np.random.default_rng
    np.random.default_rng = lambda seed=None: default_rng(np.random.randint(2**31) if seed is None else seed)


def main(name, *options):
    suite = import_module(f"support.clients.{name}")
    os.environ.update(suite.ENVIRONMENT)
    BUILD.mkdir(parents=True, exist_ok=True)
    package = suite.root() if hasattr(suite, "root") else Path(find_spec(name).origin).parent
    seed_generators()
    suite.install(on_tensors="--numpy" not in options)
    ini = BUILD / "pytest.ini"
    ini.write_text(INI, "utf-8")
    pytest_options = [option for option in options if option not in OWN_OPTIONS]
    named_files = [option for option in pytest_options if not option.startswith("-") and "/" in option]
    files = [str(package / option) for option in named_files] or suite.paths(package)
    flags = [
        *FLAGS,
        "-c",
        str(ini),
        "--rootdir",
        str(package.parent),
        *[option for option in pytest_options if option not in named_files],
    ]
    code = pytest.main([*flags, *files], plugins=[Run(name, suite, package, options)])
    # What fails on NumPy's arrays is not asked of tensors.
    return 0 if "--numpy" in options and code == pytest.ExitCode.TESTS_FAILED else code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
