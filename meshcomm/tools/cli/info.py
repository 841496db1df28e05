"""``python -m meshcomm info``."""

import json
import platform
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

import meshcomm
from meshcomm import _kernels
from meshcomm.core._arguments import counted
from meshcomm.core.failures import launchers
from meshcomm.core.layouts.machine import CONSTANTS, DISK_CONSTANTS, Machine
from meshcomm.core.ranks import rendezvous
from meshcomm.core.ranks._call_scope import CallScope
from meshcomm.core.ranks.hosts import MACHINE_FILE
from meshcomm.core.ranks.mpi import active_mpi, library_name
from meshcomm.core.ranks.variables import reset_invalid
from meshcomm.errors import MeshError
from meshcomm.tools.cli import about
from meshcomm.tools.cli.about import Host
from meshcomm.tools.cli.checks import PROBLEM, Finding, findings, line
from meshcomm.tools.cli.facts import Facts, gather, measured_connections
from meshcomm.tools.cli.hashes import VARIABLE, hashes_text
from meshcomm.tools.cli.terminal import say

Row: TypeAlias = tuple[str, str]  # a label and its value
Rows: TypeAlias = list[Row]

MAX_HOSTS = 16
"""Hosts. If there are more, only this many are listed."""


class InfoSection(NamedTuple):
    """Facts as lines for people, and as values for programs: docs/measuring.md has the names of these."""

    rows: Rows
    values: dict[str, object]

    def plus(self, other: "InfoSection") -> "InfoSection":
        """Return these facts and the *other* ones."""
        return InfoSection([*self.rows, *other.rows], self.values | other.values)


def info(as_json: bool = False) -> int:
    """Test a small relayout, and print, once, facts about Python, MPI and the ranks, and problems. Collective.

    With *as_json*, print one document of JSON. Return 0, or 1 if there is a problem.
    """
    settings = about.settings()
    invalid_settings = reset_invalid()
    is_first = launchers.is_first()
    summary, report = _local_section(), _as_json if as_json else _as_text
    isolation = _isolation_finding()
    if isolation is not None:
        launchers.let_first_tell()
        summary = summary if isolation.about == "MPI" else summary.plus(_mpi_section())
        all_findings = [isolation, *(Finding(PROBLEM, "settings", text, (0,)) for text in invalid_settings)]
        return report(summary.plus(_settings_section(settings)), [], all_findings, "") if is_first else 1
    with CallScope("info", None):
        communicator = about.connect_all()
        hosts = about.gather_hosts(communicator)
        problem = _self_test(communicator.rank, communicator.size)
        problems = [text.decode() for text in communicator.allgather(problem.encode(errors="backslashreplace"))]
        machine = _cost_model()
        facts = gather(communicator, invalid_settings)
        all_findings = findings(
            facts, measured_connections(communicator, [rank_facts["host"] for rank_facts in facts])
        )
        communicator.free()
    summary = summary.plus(_mpi_section()).plus(_hosts_section(hosts)).plus(machine).plus(_settings_section(settings))
    all_findings += _self_test_findings(problems)
    return report(summary, facts, all_findings, _verdict_text(problems)) if is_first else _exit_code(all_findings)


def _isolation_finding() -> Finding | None:
    """Return a finding if this process cannot communicate with other ranks, else None."""
    try:
        size = active_mpi().COMM_WORLD.size
    except MeshError as error:
        return Finding(PROBLEM, "MPI", f"no MPI: {error}", (0,))
    reason = launchers.isolation_reason(size, library_name)
    return Finding(PROBLEM, "launcher", reason, (0,)) if reason else None


def _as_text(summary: InfoSection, facts: Sequence[Facts], all_findings: Sequence[Finding], verdict: str) -> int:
    print_rows([*summary.rows, ("self-test", verdict)] if verdict else summary.rows)
    say("\n" + "\n".join(line(finding, max(1, len(facts))) for finding in all_findings))
    return _exit_code(all_findings)


def _as_json(summary: InfoSection, facts: Sequence[Facts], all_findings: Sequence[Finding], verdict: str) -> int:
    values = {
        "self_test": verdict,
        "checks": [finding._asdict() for finding in all_findings],
        "ranks": facts,
        "ok": not _exit_code(all_findings),
    }
    say(json.dumps(summary.values | values, indent=1))
    return _exit_code(all_findings)


def _exit_code(all_findings: Sequence[Finding]) -> int:
    return int(any(finding.level == PROBLEM for finding in all_findings))


def print_rows(rows: Sequence[Row]) -> None:
    """Print labels and values in two columns."""
    width = max(len(label) for label, _ in rows)
    say("\n".join(f"{label:{width}}  {value}" for label, value in rows))


def _local_section() -> InfoSection:
    kernel = Path(_kernels.__file__)
    compiled = time.strftime("%Y-%m-%d %H:%M", time.localtime(kernel.stat().st_mtime))
    rows = [
        ("meshcomm", f"{meshcomm.__version__} in {kernel.parent}"),
        ("kernel", f"{kernel.name}, compiled {compiled}"),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("NumPy", np.__version__),
    ]
    values: dict[str, object] = {
        "meshcomm": meshcomm.__version__,
        "folder": str(kernel.parent),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "numpy": np.__version__,
    }
    return InfoSection(rows, values)


def _mpi_section() -> InfoSection:
    mpi_library, launch = about.library(), str(launchers.launch() or "")
    rows = [
        ("mpi4py", mpi_library.mpi4py),
        ("MPI", f"{mpi_library.name}, of MPI standard {mpi_library.standard}"),
        ("thread level", mpi_library.thread_level),
        ("launcher", launch or "none, started without mpiexec"),
    ]
    return InfoSection(rows, {"mpi": mpi_library._asdict(), "launcher": launch})


def _hosts_section(hosts: Sequence[Host]) -> InfoSection:
    return InfoSection(rank_rows(hosts), {"hosts": [host._asdict() for host in hosts]})


def _settings_section(settings: dict[str, str]) -> InfoSection:
    shared, hashes = rendezvous.describe(), hashes_text()
    rows = [("shared memory", shared), (VARIABLE, hashes), *settings.items()]
    return InfoSection(rows, {"shared_memory": shared, "hash_seed": hashes, "settings": settings})


def rank_rows(hosts: Sequence[Host]) -> Rows:
    """Return rows that show how many ranks and cores each host has."""
    rank_count = sum(host.ranks for host in hosts)
    rows = [("ranks", f"{rank_count} on {counted(len(hosts), 'host')}")]
    for host in hosts[:MAX_HOSTS]:
        note = "; more ranks than cores: ranks wait for each other, and all is slow" if host.ranks > host.cores else ""
        rows.append((f"  {host.name}", f"{counted(host.ranks, 'rank')}, {counted(host.cores, 'core')}{note}"))
    if len(hosts) > MAX_HOSTS:
        rows.append(("  ...", f"and {len(hosts) - MAX_HOSTS} more hosts"))
    return rows


def _cost_model() -> InfoSection:
    """Return the constants of the cost model, which relayouts are planned with. Collective over COMM_WORLD."""
    path = about.settings().get(MACHINE_FILE, "")
    try:
        machine = meshcomm.machine_of(meshcomm.create_mesh())
    except MeshError as error:
        return InfoSection([("cost model", str(error))], {"machine": None})
    source = f"{path}, which {MACHINE_FILE} names" if path else "defaults; see python -m meshcomm calibrate"
    rows = [
        ("nodes", _nodes_text(machine)),
        ("cost model", source),
        *((f"  {name}", unit_cost(name, getattr(machine, name))) for name in (*CONSTANTS, *DISK_CONSTANTS)),
    ]
    return InfoSection(rows, {"machine": asdict(machine)})


def _nodes_text(machine: Machine) -> str:
    """Return the number of nodes, and the number of ranks on each, as text."""
    if machine.one_node:
        return "1"
    if isinstance(machine.nodes, int):
        return f"{machine.nodes} ranks each, in order"
    counts = Counter(machine.nodes)
    return f"{len(counts)}, of {min(counts.values())} to {max(counts.values())} ranks"


def unit_cost(name: str, seconds: float) -> str:
    """Return the cost of one unit of the constant *name*, as text.

    >>> unit_cost("alpha_within", 1.2e-6), unit_cost("gamma", 1e-10), unit_cost("gamma", 0)
    ('1.20 µs', '0.100 ns per byte (10.0 GB/s)', '0.000 ns per byte')
    """
    if name.startswith(("wait", "alpha")):
        return f"{seconds * 1e6:.2f} µs"
    rate = f" ({1e-9 / seconds:.1f} GB/s)" if seconds else ""
    return f"{seconds * 1e9:.3f} ns per byte{rate}"


def _self_test_findings(problems: Sequence[str]) -> list[Finding]:
    """Return the findings of the self-test, from the problem of each rank; "" stands for no problem."""
    problem_texts = dict.fromkeys(problem for problem in problems if problem)
    ranks_by_problem = {
        text: tuple(rank for rank, problem in enumerate(problems) if problem == text) for text in problem_texts
    }
    return [Finding(PROBLEM, "self-test", text, ranks) for text, ranks in ranks_by_problem.items()]


def _verdict_text(problems: Sequence[str]) -> str:
    has_problem = any(problems)
    return f"relayout over {counted(len(problems), 'rank')}: {'a problem, see below' if has_problem else 'ok'}"


def _self_test(rank: int, size: int) -> str:
    """Relayout an array from rows to columns and back; return the problem on this rank, or "". Collective."""
    try:
        mesh = meshcomm.create_mesh([("x", size)])
        rows = meshcomm.Layout(["x", meshcomm.UNSHARDED], mesh)
        columns = meshcomm.Layout([meshcomm.UNSHARDED, "x"], mesh)
        shape = (2 * size + 1, 3 * size - 1)
        array = np.arange(shape[0] * shape[1]).reshape(shape)
        in_columns = meshcomm.relayout(meshcomm.distribute(array, rows), columns)
        in_rows = meshcomm.relayout(in_columns, rows)
        for tensor in (in_columns, in_rows):
            expected = array[tensor.layout.block_slices(shape, rank)]
            if not tensor._has_block or not np.array_equal(tensor._block, expected):
                return f"wrong values in layout {tensor.layout.specs_text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
