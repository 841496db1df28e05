"""``python -m meshcomm plan``: a plan, its cost, and what the same relayout would cost with other numbers of ranks."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from meshcomm.core._arguments import as_dtype, counted
from meshcomm.core._tracing import Value
from meshcomm.core._units import bytes_text, seconds_text
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.partition import Cut
from meshcomm.core.layouts.specs import fixed_length
from meshcomm.core.plans.costs import predicted_seconds
from meshcomm.core.plans.plan import Plan, plan_relayout
from meshcomm.core.ranks.hosts import MACHINE_FILE, stored_constants
from meshcomm.errors import MeshcommError, MeshError
from meshcomm.tools.cli.arguments import bytes_of, layout_of, mesh_of, shape_of
from meshcomm.tools.cli.commands import Argument, Command
from meshcomm.tools.cli.show import LAYOUT_HELP, MESH_HELP, SHAPE_HELP, on_first_rank
from meshcomm.tools.cli.terminal import say, terminal
from meshcomm.tools.pictures.of_plans import save_plan

RANKS = (16, 64, 256, 1024, 4096, 16384, 65536)
"""Numbers of ranks in the table."""
PER_NODE = 64
"""Number of ranks on a node, unless ``--nodes`` is given; a printed line says so. Nodes have 32 to 256 cores."""
PATIENCE = 10.0
"""Seconds of CPU time. A row of the table that may take longer is left out: with four times the ranks of the previous
row, it takes up to 16 times as long."""


class Relayout(NamedTuple):
    """The relayout to plan: shape and dtype of the array, the two layouts, and the scratch limit in bytes."""

    shape: tuple[int, ...]
    dtype: str
    source: Layout
    target: Layout
    limit: int | None

    def plan(self, mesh: Mesh, machine: Machine) -> Plan:
        """Return the plan of the same relayout on another *mesh*, which has the same mesh dimensions."""
        source, target = (Layout(layout.sharding_specs, mesh) for layout in (self.source, self.target))
        return plan_relayout(self.shape, self.dtype, source, target, self.limit, machine)


def _print_plan(options: argparse.Namespace) -> None:
    mesh = mesh_of(options.mesh)
    nodes = options.nodes
    if nodes is not None and not 1 <= nodes <= mesh.size:
        raise MeshError(f"--nodes {nodes} for {mesh.size} ranks; each node has a rank or more")
    per_node = PER_NODE if nodes is None else -(-mesh.size // nodes)
    source, target = (layout_of(text, mesh) for text in (options.source, options.target))
    limit = None if options.scratch is None else bytes_of(options.scratch)
    as_dtype(options.dtype)
    relayout = Relayout(shape_of(options.shape), options.dtype, source, target.matched(source), limit)
    constants: dict[str, Value] = {**stored_constants()}
    machine = Machine(**constants)
    is_uneven = nodes is not None and mesh.size % nodes
    plan = relayout.plan(
        mesh,
        _with_node_count(machine, nodes, mesh.size)
        if is_uneven
        else _with_ranks_per_node(machine, per_node, mesh.size),
    )
    if options.svg:
        save_plan(plan, options.svg)
    note = f"assumed: {PER_NODE} ranks fill a node; --nodes says how many nodes there are"
    lines = [repr(plan), *_cost_lines(plan), *[note] * (nodes is None), "", *_table_lines(relayout, machine, per_node)]
    text = "\n".join(lines)
    say(text if terminal().unicode else text.replace("µ", "u"))


def _with_ranks_per_node(machine: Machine, per_node: int, ranks: int) -> Machine:
    """Return *machine* with *per_node* of all *ranks* on each node; the last node may have fewer."""
    return replace(machine, nodes=per_node if per_node < ranks else 0)


def _with_node_count(machine: Machine, nodes: int, ranks: int) -> Machine:
    """Return *machine* with *ranks* spread over *nodes* as by Slurm: the first nodes have one rank more."""
    cut = Cut(ranks, nodes)
    return replace(machine, nodes=tuple(cut.block_of(rank) for rank in range(ranks)))


def _cost_lines(plan: Plan) -> list[str]:
    ranks_of_nodes = np.bincount(plan.machine.node_of(np.arange(len(plan.ranks), dtype=np.intp)))
    node_count, min_ranks, max_ranks = len(ranks_of_nodes), int(ranks_of_nodes.min()), int(ranks_of_nodes.max())
    ranks_text = f"{min_ranks:,} to {max_ranks:,} ranks" if min_ranks < max_ranks else f"{counted(max_ranks, 'rank')}"
    constants_text = f"those that {MACHINE_FILE} names" if stored_constants() else "the default ones"
    return [
        f"predicted time: {seconds_text(_predicted_seconds(plan))}, on "
        f"{counted(node_count, 'node')} of {ranks_text} over MPI, with constants: {constants_text}",
        f"peak memory of a rank: {bytes_text(plan.peak_bytes)}, with its block before, its block after and scratch",
    ]


# -- other numbers of ranks -------------------------------------------------------------------------------------------


def _table_lines(relayout: Relayout, machine: Machine, per_node: int) -> list[str]:
    """Return the lines of a table: the same relayout with other numbers of ranks."""
    if any(fixed_length(spec) is not None for layout in (relayout.source, relayout.target) for spec in layout.axes):
        return ["Chosen boundaries fit one number of ranks only, so there is no table for others."]
    rows = [("ranks", "mesh", "nodes", "received", "messages", "peak memory", "time")]
    meshes = {scale_sizes(relayout.source.mesh.shape(), ranks) for ranks in RANKS}
    seconds = 0.0
    for sizes in sorted(meshes, key=lambda sizes: (prod(sizes), sizes)):
        ranks = prod(sizes)
        first_cells = (f"{ranks:,}", ",".join(map(str, sizes)), f"{-(-ranks // per_node):,}")
        if 16 * seconds > PATIENCE:
            rows.append((*first_cells, "too many ranks to plan in seconds", "", "", ""))
            continue
        begin = time.process_time()
        mesh = Mesh(range(ranks), list(zip(relayout.source.mesh.dim_names, sizes, strict=True)))
        rows.append((*first_cells, *_table_row(relayout, mesh, _with_ranks_per_node(machine, per_node, ranks))))
        seconds = time.process_time() - begin
    return [
        f"The same array on other meshes, with {counted(per_node, 'rank')} on each node. The smallest "
        "mesh dimension is",
        "doubled, or the largest one halved, until the mesh has the ranks. For the rank with the most:",
        *_aligned_lines(rows),
    ]


def _table_row(relayout: Relayout, mesh: Mesh, machine: Machine) -> tuple[str, str, str, str]:
    try:
        plan = relayout.plan(mesh, machine)
    except MeshcommError as error:
        return f"no plan: {error}"[:60], "", "", ""
    return (
        bytes_text(plan.bytes_moved),
        f"{plan.messages:,}",
        bytes_text(plan.peak_bytes),
        seconds_text(_predicted_seconds(plan)),
    )


def _predicted_seconds(plan: Plan) -> float:
    """Return the predicted time of *plan*; if it moves nothing, that of the copy."""
    return predicted_seconds(plan.steps, plan.machine) or plan.seconds


def scale_sizes(sizes: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Return *sizes* of mesh dimensions, doubled or halved in turn until their product is at most *ranks*.

    A dimension of size 1 stays, unless all have size 1.

    >>> scale_sizes([64], 16), scale_sizes([4, 2], 64), scale_sizes([3, 2], 64), scale_sizes([1, 1], 4)
    ((16,), (8, 8), (6, 8), (4, 1))
    """
    scaled_sizes = list(sizes)
    while 2 * prod(scaled_sizes) <= ranks:
        chosen_axis = min(range(len(scaled_sizes)), key=lambda axis: (scaled_sizes[axis] == 1, scaled_sizes[axis]))
        scaled_sizes[chosen_axis] *= 2
    while prod(scaled_sizes) > ranks and any(size % 2 == 0 for size in scaled_sizes):
        chosen_axis = max(
            (axis for axis in range(len(scaled_sizes)) if scaled_sizes[axis] % 2 == 0), key=scaled_sizes.__getitem__
        )
        scaled_sizes[chosen_axis] //= 2
    return tuple(scaled_sizes)


def _aligned_lines(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows if len(row[column]) < 30) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


PLAN = Command(
    help="print the plan of a relayout, what it costs, and what it would cost with 16 to 65,536 ranks",
    description="Print the plan of a relayout, the time that the cost model predicts, the peak memory of a rank, "
    "and the same for 16 to 65,536 ranks. Needs no MPI: python -m meshcomm plan --shape 4096,4096 --dtype f8 "
    "--mesh x=64 --from x,unsharded --to unsharded,x",
    arguments=(
        Argument("--shape", required=True, help=SHAPE_HELP),
        Argument("--dtype", default="f8", help="the NumPy dtype of the elements; f8 by default"),
        Argument("--mesh", required=True, help=MESH_HELP),
        Argument("--from", dest="source", required=True, metavar="LAYOUT", help=LAYOUT_HELP),
        Argument("--to", dest="target", required=True, metavar="LAYOUT", help="likewise"),
        Argument(
            "--nodes",
            type=int,
            help=f"on how many nodes the ranks are, in order, as evenly as they can; by default {PER_NODE} "
            "ranks fill a node",
        ),
        Argument("--scratch", metavar="BYTES", help="the scratch limit: 512K, 1M, 2G"),
        Argument("--svg", metavar="FILE", help="also write the picture of the plan to an SVG file"),
    ),
    action=lambda options: on_first_rank(lambda: _print_plan(options)),
)
