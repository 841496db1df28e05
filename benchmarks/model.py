"""Print what the cost model predicts for 2 to 65,536 ranks, or compare it with measured relayouts.

``python benchmarks/model.py`` predicts times, messages and bytes per link of an AllToAll over all ranks: direct, and
in two node-aware ways, for several ranks per node and bytes per rank. It plans for a few ranks only. ``--machine``
names a file of ``python -m meshcomm calibrate``; without it, the default constants count. ``--link`` is the bytes per
second that the ranks of a node receive together, ``--per-node`` how many ranks a node has.

``mpiexec -n 4 python benchmarks/model.py --check`` calibrates, runs relayouts, and compares each with its prediction.
"""

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import meshcomm as mc
from meshcomm.core._units import seconds_text
from meshcomm.core.layouts.machine import Load

U = mc.UNSHARDED
RANKS = (2, 16, 256, 1024, 4096, 16384, 65536)
PER_NODE = (16, 64, 128)
BLOCKS = (2**17, 2**20, 2**24, 2**27)
TOTALS = (2**12, 2**16, 2**20, 2**24)
LINK = 25e9
ROUNDS = 100


class Exchange(NamedTuple):
    """The load of one rank in a direct exchange, and the ranks per node and nodes of the exchange."""

    load: Load
    ranks_per_node: int
    nodes: int


def exchange(ranks: int, per_node: int, block: int, machine: mc.Machine) -> Exchange:
    """Return the load of the busiest of three ranks when rows become columns, with *block* bytes per rank."""
    mesh = mc.Mesh(range(ranks), [("x", ranks)])
    rows, columns = mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh)
    per_node = min(per_node, ranks)
    machine = replace(machine, nodes=per_node if per_node < ranks else 0)
    plan = mc.plan_relayout((2 * ranks, block // 2), "u1", rows, columns, 2**62, machine)
    loads = [plan.for_device(device).load for device in (0, ranks // 2, ranks - 1)]
    return Exchange(max(loads, key=machine.seconds), per_node, ranks // per_node)


def direct(work: Exchange, machine: mc.Machine) -> float:
    """Return the time of the direct exchange: a message to each rank."""
    return machine.seconds(work.load)


def forwarders(work: Exchange, machine: mc.Machine) -> float:
    """Return the time with one forwarder on each other node, which hands data to the ranks of its node."""
    if work.nodes == 1:
        return math.inf
    load, others = work.load, work.ranks_per_node - 1
    return machine.seconds(
        Load(
            on_node_exchanges=1,
            on_node_messages=others,
            on_node_bytes=load.on_node_bytes + load.off_node_bytes * others / work.ranks_per_node,
            off_node_exchanges=1,
            off_node_messages=work.nodes - 1,
            off_node_bytes=load.off_node_bytes,
            passed_bytes=load.passed_bytes + load.off_node_bytes,
        )
    )


def aggregators(work: Exchange, machine: mc.Machine) -> float:
    """Return the time with one aggregator for each pair of nodes; ranks share the other nodes evenly."""
    if work.nodes == 1:
        return math.inf
    load, others = work.load, work.ranks_per_node - 1
    return machine.seconds(
        Load(
            on_node_exchanges=2,
            on_node_messages=2 * others,
            on_node_bytes=load.on_node_bytes + 2 * load.off_node_bytes * others / work.ranks_per_node,
            off_node_exchanges=1,
            off_node_messages=math.ceil((work.nodes - 1) / work.ranks_per_node),
            off_node_bytes=load.off_node_bytes,
            passed_bytes=load.passed_bytes + 2 * load.off_node_bytes,
        )
    )


def forwarders_pay_below(machine: mc.Machine, per_node: int, nodes: int) -> float:
    """Return the bytes per message below which forwarders are faster than the direct exchange."""
    saved = machine.alpha_between * (nodes - 1) * (per_node - 1) - machine.wait_within
    return max(0.0, saved / _handing_on(machine, per_node, nodes))


def aggregators_pay_below(machine: mc.Machine, per_node: int, nodes: int) -> float:
    """Return the bytes per message below which aggregators are faster than forwarders."""
    fewer = nodes - 1 - math.ceil((nodes - 1) / per_node)
    saved = machine.alpha_between * fewer - machine.alpha_within * (per_node - 1) - machine.wait_within
    return max(0.0, saved / _handing_on(machine, per_node, nodes))


def _handing_on(machine: mc.Machine, per_node: int, nodes: int) -> float:
    """Return the seconds per byte of a message in which a rank hands on its data from other nodes."""
    per_byte = machine.beta_within * (per_node - 1) / per_node + machine.gamma
    return per_byte * (nodes - 1) * per_node


def shared_link(machine: mc.Machine, per_node: int, link: float) -> mc.Machine:
    """Return *machine*, slowed down if the ranks of a node share a *link* of these bytes per second."""
    return replace(machine, beta_between=max(machine.beta_between, per_node / link))


def predict(machine: mc.Machine, link: float, ranks_per_node: Sequence[int] = PER_NODE) -> None:
    """Print the sizes for which node-aware exchanges pay, and times."""
    print(
        "| nodes | per node | one forwarder per node pays below | aggregators pay more below |\n|---|---|---|---|\n"
        + "\n".join(
            f"| {nodes:,} | {per_node} | {size(forwarders_pay_below(machine, per_node, nodes))} per message "
            f"| {size(aggregators_pay_below(machine, per_node, nodes))} |"
            for per_node in ranks_per_node
            for nodes in (2, 4, 16, 64, 256, 1024)
        ),
        end="\n\n",
    )
    print(
        "| ranks | per node | bytes per rank | per message | messages between nodes | GB into a node | direct "
        "| one forwarder per node | aggregators | best |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for per_node in ranks_per_node:
        on_link = shared_link(machine, per_node, link)
        for ranks in RANKS:
            for block in BLOCKS:
                if ranks > per_node and block >= 2 * ranks:
                    print(row(exchange(ranks, per_node, block, on_link), ranks, block, on_link))


def row(work: Exchange, ranks: int, block: int, machine: mc.Machine) -> str:
    """Return a line of the table."""
    ways = (direct, forwarders, aggregators)
    times = {way.__name__: way(work, machine) for way in ways}
    best = min(times, key=lambda name: times[name])
    gain = "" if best == "direct" else f" {times['direct'] / times[best]:.1f} times"
    into = work.load.off_node_bytes * work.ranks_per_node
    cells = [
        f"{ranks:,}",
        str(work.ranks_per_node),
        size(block),
        size(block / ranks),
        f"{work.load.off_node_messages:,.0f}",
        f"{into / 1e9:.3g}",
        *map(duration, times.values()),
        best + gain,
    ]
    return f"| {' | '.join(cells)} |"


def size(count: float) -> str:
    """Return a number of bytes in readable form."""
    power = max(0, min(3, int(math.log2(max(count, 1))) // 10))
    return f"{count / 1024**power:.0f} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def duration(seconds: float) -> str:
    """Return a time in readable form."""
    return "-" if math.isinf(seconds) else seconds_text(seconds)


# -- against measured runs --------------------------------------------------------------------------------------------


def cases(ranks: int) -> Iterator[tuple[str, mc.Layout, mc.Layout]]:
    """Yield relayouts over all ranks, with their names."""
    line = mc.create_mesh([("x", ranks)])
    yield "rows to columns", mc.Layout(["x", U], line), mc.Layout([U, "x"], line)
    yield "columns to rows", mc.Layout([U, "x"], line), mc.Layout(["x", U], line)
    yield "gather rows", mc.Layout(["x", U], line), mc.Layout([U, U], line)
    if ranks >= 4 and ranks % 2 == 0:
        grid = mc.create_mesh([("x", 2), ("y", ranks // 2)])
        yield "x,y to x+y", mc.Layout(["x", "y"], grid), mc.Layout([("x", "y"), U], grid)
        yield "x+y to y,x", mc.Layout([("x", "y"), U], grid), mc.Layout(["y", "x"], grid)
        yield "pencils", mc.Layout(["x", "y", U], grid), mc.Layout(["x", U, "y"], grid)


def check() -> None:
    """Calibrate, run relayouts, and print predicted and measured times. Collective over all ranks."""
    from meshcomm.core.ranks.meshes import location_in
    from meshcomm.tools.cli.fit import calibrate, fastest

    location = location_in(mc.create_mesh())
    assert location is not None
    rank_set = location.rank_set
    machine = replace(rank_set.machine, **calibrate(rank_set, Path(tempfile.gettempdir())).constants)
    plans, runs = [], []
    for name, source, target in cases(len(rank_set.ranks)):
        for total in TOTALS:
            length = max(len(rank_set.ranks), round((total / 8) ** (1 / source.ndim)))
            plan = mc.plan_relayout((length,) * source.ndim, "f8", source, target, None, machine)
            tensor, out = (mc.full(plan.shape, 1.0, "f8", layout) for layout in (source, target))
            plans.append((name, plan))
            runs.append(partial(plan.execute, tensor, out))
    times = fastest(rank_set.everyone.communicator(), runs, ROUNDS)
    if rank_set.rank:
        return
    print(f"{len(rank_set.ranks)} ranks, {machine}\n")
    print("| relayout | MiB | predicted | measured | ratio |\n|---|---|---|---|---|")
    ratios = []
    for (name, plan), took in zip(plans, times, strict=True):
        ratios.append(plan.seconds / took)
        mebibytes = math.prod(plan.shape) * 8 / 2**20
        print(f"| {name} | {mebibytes:.3g} | {duration(plan.seconds)} | {duration(took)} | {ratios[-1]:.2f} |")
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"\npredicted / measured: quartiles {low:.2f}, {middle:.2f}, {high:.2f}; {min(ratios):.2f}-{max(ratios):.2f}"
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", type=Path, help="file with the constants")
    parser.add_argument("--link", type=float, default=LINK, help="bytes per second that a node can receive")
    parser.add_argument("--per-node", type=int, nargs="+", default=PER_NODE, help="ranks of a node")
    parser.add_argument(
        "--check", action="store_true", help="compare with runs on this machine; launch it with mpiexec"
    )
    options = parser.parse_args()
    if options.check:
        check()
        return
    machine = mc.Machine(**json.loads(options.machine.read_text())) if options.machine else mc.Machine()
    predict(machine, options.link, options.per_node)


if __name__ == "__main__":
    main()
