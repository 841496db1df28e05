"""Write the figures as a Markdown page and a plot: ``python benchmarks/report.py DIRECTORY`` makes them again."""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cases import bytes_text

Figures = dict[str, Any]  # the output of measure.py for one number of ranks or devices

MAIN = (
    "meshcomm",
    "mpi4py",
    "mpi4py-fft redistribute",
    "mpi4py-fft Transfer",
    "Heat",
    "DTensor on gloo",
    "jax.device_put",
    "jax.jit(out_shardings=)",
)
METHOD = """\
- Contenders take turns: in each round every one runs once, in an order that changes, so that all see the same noise. A
  time is that from one barrier of all ranks to the next. Calls on less than 4 MiB are timed after one that is not, so
  that they do not pay for what the others left in the caches.
- *time / memcpy* is the ratio of the time to that of `memcpy` in the same round; the table has the median over rounds,
  and quartiles in parentheses. All ranks run `memcpy` at once: NumPy copies a block as large as the target's into
  memory that is there already. *streaming memcpy* is that of meshcomm's kernel, whose stores bypass the cache where
  copies are large.
- The *first call* is that of this process for this case: planning, communicators, memory that was never touched.
- After the timing each contender runs once more on other values, and its result is compared on every rank.
- *mpi4py* is the code that a careful user writes for one case. All contenders return new arrays, except *mpi4py-fft
  Transfer*, which is planned before and writes into a kept array. *DTensor on gloo* gathers the whole array on every
  rank, because gloo has no AllToAll. A slow contender runs in fewer rounds than the others, at least 5.
"""


def quartiles(data: list[float]) -> tuple[float, float, float]:
    """Return the median, and the quartiles below and above it.

    >>> quartiles([1.0, 2.0, 3.0])
    (2.0, 1.5, 2.5)
    """
    if len(data) < 2:
        return data[0], data[0], data[0]
    low, middle, high = statistics.quantiles(data, n=4, method="inclusive")
    return middle, low, high


def ratios(measured: dict[str, Any], name: str) -> list[float]:
    """Return the times of a contender in units of the memcpy of the same round."""
    times = measured["times"]
    return [
        t / unit for t, unit in zip(times[name], times["memcpy"], strict=False)
    ]  # slow contenders have fewer rounds


def number(x: float) -> str:
    """Return three digits.

    >>> number(0.012345), number(1234.5)
    ('0.0123', '1234')
    """
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"


def spread(data: list[float], scale: float = 1.0) -> str:
    """Return the median and the quartiles.

    >>> spread([1.0, 2.0, 3.0])
    '2 (1.5-2.5)'
    """
    middle, low, high = (number(scale * x) for x in quartiles(data))
    return f"{middle} ({low}-{high})"


def table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    for row in [header, ["---"] * len(header), *rows]:
        yield f"| {' | '.join(row)} |"
    yield ""


def page(figures: list[Figures], facts: dict[str, str]) -> str:
    """Return the Markdown page."""
    lines = ["# Benchmarks of meshcomm", ""]
    lines += [f"- {name}: {text}" for name, text in (facts | where(figures[0])).items()]
    lines += ["", METHOD]
    for found in figures:
        rows = [m for m in found["measured"] if not m["case"]["scaling"] and not m["case"]["live"]]
        turns = [m for m in found["measured"] if m["case"]["live"]]
        if rows or turns:
            lines += [
                f"## {heading(found)}",
                "",
                load(found),
                "",
                *summary(rows),
                *ways(rows),
                *latency(rows),
                *loops(turns),
                *details([*rows, *turns]),
            ]
    lines += scaling(figures)
    return "\n".join(lines)


def heading(found: Figures) -> str:
    """Return the heading of a section."""
    if found["devices"]:
        return f"{found['ranks']} devices, which are threads of one process"
    return f"{found['ranks']} ranks"


def where(found: Figures) -> dict[str, str]:
    """Return the machine, the MPI and the versions."""
    it = found["environment"]
    return {
        "machine": f"{it['processor']}, {it['cores']} cores on {it['hosts']} host(s), {it['system']}",
        "MPI": it["mpi"] or "none",
        "versions": f"Python {it['python']}, " + ", ".join(f"{n} {v}" for n, v in it["packages"].items()),
    }


def load(found: Figures) -> str:
    """Return the load of the machine, and whether it was oversubscribed."""
    before, after = (f"{average[0]:.1f}" for average in found["load"])
    cores = found["environment"]["cores"] * found["environment"]["hosts"]
    oversubscribed = f"More ranks than cores ({cores}). " if found["ranks"] > cores else ""
    return f"{oversubscribed}Load (the system's average over a minute) {before} before, {after} after."


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of ratios, and the cases that contenders cannot express."""
    present = [name for name in MAIN if any(name in m["times"] for m in rows)]
    cells = []
    for m in rows:
        here = [spread(ratios(m, name)) if name in m["times"] else "-" for name in present]
        cells.append([m["case"]["name"], number(1e3 * statistics.median(m["times"]["memcpy"])), *here])
    yield from table(["time / memcpy", "memcpy, ms", *present], cells)
    yield from reasons(rows)


def reasons(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield which contenders are missing, why, and in which cases."""
    found: dict[tuple[str, str], list[str]] = {}
    for m in rows:
        for name, reason in m["cannot"].items():
            found.setdefault((name, reason), []).append(m["case"]["name"])
    if found:
        yield "Did not run:\n"
    for (name, reason), cases in found.items():
        yield f"- {name}: {reason}" + (f" ({'; '.join(cases)})" if len(cases) <= 4 and len(rows) > 1 else "")
    yield ""


def ways(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of meshcomm's and mpi4py's other calls for the same."""
    wanted = [m for m in rows if m["case"]["ways"]]
    names = dict.fromkeys(n for m in wanted for n in m["times"] if n in MAIN[:2] or n not in MAIN)
    cells = [
        [name, *(spread(ratios(m, name)) if name in m["times"] else "-" for m in wanted)]
        for name in names
        if name != "memcpy"
    ]
    if cells:
        yield from table(["time / memcpy", *(m["case"]["name"] for m in wanted)], cells)


def latency(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what a small relayout adds to the bare MPI call, and what start_relayout adds to it."""
    for m in rows:
        times, bare = m["times"], "bare MPI_Alltoallv"
        if bare in times and "meshcomm" in times:
            added = [a - b for a, b in zip(times["meshcomm"], times[bare], strict=False)]
            both = (f"{name} {spread(times[name], 1e6)} µs" for name in ("nothing", bare, "meshcomm") if name in times)
            yield f"- {m['case']['name']}: {', '.join(both)}; added to the bare call {spread(added, 1e6)} µs"
        if m["case"]["start"] and "meshcomm, start_relayout" in times:
            found = [a / b for a, b in zip(times["meshcomm, start_relayout"], times["meshcomm"], strict=False)]
            yield f"- {m['case']['name']}: start_relayout and wait take {spread(found)} times as long as relayout"
    yield ""


def loops(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the time and the page faults of a turn of each loop; the first two turns do not count."""
    if not rows:
        return
    yield "A turn makes one block less than are live, and drops them at its end. Page faults: the goal is 0.\n"
    cells = []
    for m in rows:
        times, faults = m["times"]["meshcomm, loop"][1:], m["faults"]["meshcomm, loop"][1:]  # [0] is the second turn
        each = [ratio / (m["case"]["live"] - 1) for ratio in ratios(m, "meshcomm, loop")[1:]]
        cells.append([m["case"]["name"], spread(times, 1e3), spread(each), number(statistics.mean(faults))])
    yield from table(["loop", "turn, ms", "relayout / memcpy", "page faults per turn and rank, at most"], cells)


def details(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of all times."""
    yield "<details><summary>All times</summary>\n"
    cells = []
    for m in rows:
        for name, times in m["times"].items():
            right = {None: "", True: "yes", False: "**WRONG**"}[m["right"].get(name)]
            first = number(1e3 * m["cold"][name])
            cells.append([m["case"]["name"], name, spread(times, 1e3), spread(ratios(m, name)), first])
            cells[-1] += [str(len(times)), right]
    yield from table(["case", "contender", "ms", "time / memcpy", "first call, ms", "rounds", "verified"], cells)
    yield "</details>\n"


def scaling(figures: list[Figures]) -> Iterator[str]:
    """Yield a table of medians for each number of ranks."""
    yield "## Sizes: rows → columns, float64, milliseconds\n"
    yield "![Time by size](scaling.png)\n"
    for found in figures:
        points = [m for m in found["measured"] if m["case"]["scaling"]]
        names = dict.fromkeys(name for m in points for name in m["times"])
        cells = []
        for m in points:
            medians = [number(1e3 * statistics.median(m["times"][n])) if n in m["times"] else "-" for n in names]
            cells.append([bytes_text(m["case"]["nbytes"]), *medians])
        if points:
            yield from table([heading(found), *names], cells)
            yield from reasons(points)


def plot(figures: list[Figures], file: Path) -> str | None:
    """Draw time by size, a panel per number of ranks; return the reason if there is no plot."""
    try:
        import matplotlib
    except ImportError:
        return "no plot: matplotlib is not installed"
    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = [found for found in figures if any(m["case"]["scaling"] for m in found["measured"])]
    if not panels:
        return "no plot: no sizes were measured"
    figure, axes = pyplot.subplots(1, len(panels), sharey=True, figsize=(4.5 * len(panels), 5), squeeze=False)
    colours = {name: f"C{k}" for k, name in enumerate(MAIN)} | {"memcpy": "black", "streaming memcpy": "grey"}
    for found, ax in zip(panels, axes[0], strict=True):
        points = [m for m in found["measured"] if m["case"]["scaling"]]
        for name in dict.fromkeys(name for m in points for name in m["times"]):
            line = [(m["case"]["nbytes"], quartiles(m["times"][name])) for m in points if name in m["times"]]
            sizes, lows, highs = ([x for x, _ in line], [q[1] * 1e3 for _, q in line], [q[2] * 1e3 for _, q in line])
            style = "--" if name.endswith("memcpy") else "o-"
            ax.loglog(sizes, [q[0] * 1e3 for _, q in line], style, color=colours.get(name), label=name, base=2)
            ax.fill_between(sizes, lows, highs, color=colours.get(name), alpha=0.2)
        ax.set_yscale("log", base=10)
        ax.set_xticks(sizes, [bytes_text(n) for n in sizes], rotation=60)
        ax.set_title(heading(found), fontsize=10)
        ax.grid(alpha=0.3)
        ax.legend(fontsize=7)
    axes[0][0].set_ylabel("ms, median and quartiles")
    figure.suptitle("rows → columns, float64: time by size of the whole array")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    return None


def write(directory: Path) -> list[str]:
    """Write the page and the plot of the figures in a directory; return the lines for the user."""
    figures = [json.loads(file.read_text(encoding="utf-8")) for file in directory.glob("figures-*.json")]
    if not figures:
        return [f"there are no figures in {directory}"]
    figures.sort(key=lambda found: (found["devices"], found["ranks"]))
    facts = json.loads((directory / "facts.json").read_text(encoding="utf-8"))
    file = directory / "report.md"
    problem = plot(figures, directory / "scaling.png")
    file.write_text(page(figures, facts) + "\n", encoding="utf-8")
    wrong = {name for found in figures for m in found["measured"] for name, right in m["right"].items() if not right}
    told = [f"WRONG RESULTS of {', '.join(sorted(wrong))}: see the page"] if wrong else []
    return [*told, problem or f"plot: {directory / 'scaling.png'}", f"page: {file}"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    print("\n".join(write(parser.parse_args().directory)))
