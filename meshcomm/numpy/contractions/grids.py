"""The search for the plan of a contraction: over which mesh dimensions each index is cut, and in which panels it runs.

The arithmetic is the same for all cuts; only the bytes that move differ. So the search assigns each mesh dimension to
an index. It starts from assignments in which an operand, or the result, does not move, and changes one mesh dimension
at a time while that makes the contraction cheaper. Then it does the same on a mesh with each dimension split in two,
as a square grid of devices moves fewer bytes than a row of them.

A plan may receive at most `TOLERATED` times the bytes of the best plan that keeps an operand or the result. Among
these plans, the fastest by the cost model is taken.

All is a function of arguments that are equal on all ranks, in one order: see the proof in
`meshcomm.core.plans.search`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations
from math import ceil, gcd, inf, isqrt, prod
from typing import NamedTuple, TypeAlias

from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import FieldsOnly, Names
from meshcomm.core.layouts.coordinates import devices_along
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.refinement import refined
from meshcomm.core.layouts.specs import CutSpec, Cyclic, is_interval
from meshcomm.errors import ShapeError
from meshcomm.numpy.contractions.contraction import (
    Contraction,
    Factor,
    arithmetic_seconds,
    index_lengths,
    local_limit,
    pack_limit,
)

TOLERATED = 1.1
_MAX_LOOP_CANDIDATES = 4  # indices: the longest ones are tried as loops
_MAX_LOOPS = 3  # nested loops of a plan

IndexAssignment: TypeAlias = dict[str, str | None]
"""For each mesh dimension, the index that it cuts; None if it cuts none."""


class PanelLoops(NamedTuple):
    """The loops over panels, and their cost.

    Parameters
    ----------
    loops: pairs of an index and the elements of a panel, outermost first
    bytes_moved: bytes that a device receives
    busiest_bytes: bytes that the busiest device sends or receives, panel by panel: if few devices hold a panel, they
        send it, or add it up, while the others wait
    summed_loops: number of loops over summed indices, which add to the same elements of the result
    panels: number of panels
    """

    loops: tuple[tuple[str, int], ...]
    bytes_moved: float
    busiest_bytes: float
    summed_loops: int
    panels: int


@dataclass(frozen=True)
class Problem(FieldsOnly):
    """A contraction to plan: the operands and the result, on one mesh."""

    operands: tuple[Factor, ...]
    result: Factor

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self.result.layout.mesh

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """The operands, and then the result."""
        return (*self.operands, self.result)

    @cached_property
    def lengths(self) -> dict[str, int]:
        """The number of elements of each index."""
        return index_lengths(self.operands)

    def on(self, mesh: Mesh) -> "Problem":
        """Return the same problem on *mesh*, with dimensions that are factors of those of this problem's mesh."""
        factors = [Factor(f.indices, f.shape, refined(f.layout, mesh), f.dtype) for f in self.factors]
        return Problem(tuple(factors[:-1]), factors[-1])


class IndexGrid:
    """How the indices of a problem are cut over its mesh while blocks are multiplied, and an estimate of its cost."""

    def __init__(self, problem: Problem, assignment: IndexAssignment) -> None:
        self.problem, self.assignment = problem, assignment
        mesh = problem.mesh
        dims: dict[str, list[str]] = {index: [] for index in problem.lengths}
        for name, index in assignment.items():
            if index is not None:
                dims[index].append(name)
        self.cut = {index: self._spec(index, names) for index, names in dims.items()}
        self.blocks = {index: devices_along(mesh, names) for index, names in self.cut.items()}
        summed = [index for index in self.blocks if index not in problem.result.indices]
        self.share_count = prod(self.blocks[index] for index in summed)
        self.received_bytes = [self._received_bytes(operand) for operand in problem.operands]
        self.result_bytes = self._result_bytes()

    def _spec(self, index: str, names: list[str]) -> Names:
        """Return the sharding spec by which these mesh dimensions cut an index: that of a factor, if one has it."""
        if not names:
            return ()
        specs = [f.layout.axes[f.indices.index(index)] for f in self.problem.factors if index in f.indices]
        for spec in specs:
            if set(spec) == set(names):
                return spec
        closest_spec = max(specs, key=lambda spec: len(set(spec) & set(names)))
        common = [name for name in closest_spec if name in names]
        return (*common, *(name for name in names if name not in common))

    def elements(self, factor: Factor) -> int:
        """Return the most elements of *factor* that a device multiplies."""
        return prod(-(-n // self.blocks[i]) for i, n in zip(factor.indices, factor.shape, strict=True))

    def _common_elements(self, factor: Factor) -> float:
        """Return about how many of these elements a device holds already."""
        mesh, common = self.problem.mesh, 1.0
        for index, n, spec in zip(factor.indices, factor.shape, factor.layout.axes, strict=True):
            target = self.cut[index]
            p, q = devices_along(mesh, spec), self.blocks[index]
            if spec == target:
                common *= -(-n // q)
            elif isinstance(spec, CutSpec) or isinstance(target, CutSpec):
                common *= n / p / q
            else:
                length = 0
                while length < min(len(spec), len(target)) and spec[length] == target[length]:
                    length += 1
                common_p = devices_along(mesh, spec[:length])
                common *= -(-n // max(p, q)) if length == min(len(spec), len(target)) else n * common_p / p / q
        return common

    def _received_bytes(self, factor: Factor) -> float:
        return max(0.0, self.elements(factor) - self._common_elements(factor)) * factor.dtype.itemsize

    def _result_bytes(self) -> float:
        """Return about how many bytes a device receives of the result."""
        result, mesh = self.problem.result, self.problem.mesh
        blocks = [devices_along(mesh, names) for names in result.layout.axes]
        share = prod(-(-n // p) for n, p in zip(result.shape, blocks, strict=True))
        if self.share_count == 1:
            return max(0.0, share - self._common_elements(result)) * result.dtype.itemsize
        partial = self.elements(result)
        if share < partial:  # each device gets its share of all partial sums
            return (share * self.share_count - self._common_elements(result)) * result.dtype.itemsize
        return (partial * (1 - 1 / self.share_count) + share - partial / self.share_count) * result.dtype.itemsize

    @property
    def keeps_result(self) -> bool:
        """Whether devices multiply straight into their blocks of the result."""
        result = self.problem.result
        cut = tuple(self.cut[i] for i in result.indices)
        return self.share_count == 1 and cut == result.layout.axes

    def is_unmoved(self, factor: Factor) -> bool:
        """Return whether no element of *factor* moves: each device holds all elements that it multiplies."""
        if factor is self.problem.result:
            return self.keeps_result
        return self.received_bytes[self.problem.operands.index(factor)] == 0 and all(
            is_interval(spec, self.cut[i]) for i, spec in zip(factor.indices, factor.layout.axes, strict=True)
        )

    @cached_property
    def flops(self) -> int:
        """The most multiplications and additions of a device."""
        return len(self.problem.operands) * prod(-(-n // self.blocks[i]) for i, n in self.problem.lengths.items())

    @property
    def bytes_moved(self) -> float:
        """The bytes that a device receives, if all fits in memory at once."""
        return sum(self.received_bytes) + self.result_bytes

    def seconds(self, machine: Machine, bytes_moved: float, panels: int = 1) -> float:
        """Return about how long the contraction takes if a device receives *bytes_moved* bytes in *panels* panels."""
        alpha, beta = (
            (machine.wait_within, machine.beta_within)
            if machine.one_node
            else (machine.wait_between, machine.beta_between)
        )
        moving = sum(1 for size in (*self.received_bytes, self.result_bytes) if size > 0)
        return arithmetic_seconds(self.flops) + beta * bytes_moved + alpha * moving * panels

    # -- panels -------------------------------------------------------------------------------------------------------

    @cached_property
    def _moving_factors(self) -> list[tuple[Factor, float, float]]:
        """The factors that move, with the bytes that a device receives of each, and the bytes that it then takes."""
        moving_factors = [
            (operand, received, float(self.elements(operand) * operand.dtype.itemsize))
            for operand, received in zip(self.problem.operands, self.received_bytes, strict=True)
            if not self.is_unmoved(operand)
        ]
        if not self.keeps_result:
            result = self.problem.result
            size = float(self.elements(result) * result.dtype.itemsize)
            moving_factors.append((result, self.result_bytes, size if self.share_count > 1 else 2 * size))
        return moving_factors

    @property
    def moves(self) -> bool:
        """Whether a factor moves, and so takes memory."""
        return bool(self._moving_factors)

    @cached_property
    def loop_indices(self) -> list[str]:
        """The indices along which panels may go, the longest first.

        Such an index is not cut, or only cut where all factors that have it move.
        """
        moving_factors = [factor for factor, _, _ in self._moving_factors]
        indices = [
            index
            for index, n in self.problem.lengths.items()
            if n > 1
            and (
                self.blocks[index] == 1
                or all(index not in f.indices or f in moving_factors for f in self.problem.factors)
            )
        ]
        return sorted(indices, key=lambda index: -self.problem.lengths[index])[:_MAX_LOOP_CANDIDATES]

    def loops(self, limit: float, loop_count: int) -> PanelLoops | None:
        """Return the best panels along *loop_count* indices with which factors take at most *limit* bytes, or None.

        A single panel is the best, if it fits.
        """
        one_panel = self._panels((), (), limit)
        if one_panel is not None or self._panel_bytes(dict.fromkeys(self.loop_indices, 1)) > limit:
            return one_panel
        best: PanelLoops | None = None
        for order in permutations(self.loop_indices, loop_count):
            loops = self._best_panels(order, limit)
            if loops is not None and (best is None or _is_better(loops, best)):
                best = loops
        return best

    def minimum(self) -> float:
        """Return the fewest bytes that factors take in any panels."""
        return min(
            self._panel_bytes(dict.fromkeys(order, 1))
            for loop_count in range(min(_MAX_LOOPS, len(self.loop_indices)) + 1)
            for order in permutations(self.loop_indices, loop_count)
        )

    def _best_panels(self, order: tuple[str, ...], limit: float) -> PanelLoops | None:
        """Return the best panels along *order*: the last index has the longest panels that fit."""
        best: PanelLoops | None = None
        if self._panel_bytes(dict.fromkeys(order, 1)) > limit:
            return None
        for outer_widths in self._widths(order[:-1]):
            inner_width = self._widest_panels(dict(zip(order, outer_widths, strict=False)), order[-1], limit)
            if inner_width is None:
                continue
            loops = self._panels(order, (*outer_widths, inner_width), limit)
            if loops is not None and (best is None or _is_better(loops, best)):
                best = loops
        return best

    def _widths(self, order: tuple[str, ...]) -> Iterator[tuple[int, ...]]:
        if not order:
            yield ()
            return
        width = self.problem.lengths[order[0]]
        while width > 1:
            width = self._aligned_width(order[0], -(-width // 4))
            for inner_widths in self._widths(order[1:]):
                yield (width, *inner_widths)

    def _widest_panels(self, widths: dict[str, int], index: str, limit: float) -> int | None:
        """Return the width of panels along *index*: as few panels as fit, of about equal widths."""
        n = self.problem.lengths[index]
        least_bytes, max_block_bytes = (self._panel_bytes({**widths, index: width}) for width in (1, n))
        if least_bytes > limit:
            return None
        width = (
            n
            if max_block_bytes <= limit
            else 1 + int((limit - least_bytes) * (n - 1) / (max_block_bytes - least_bytes))
        )
        while self._panel_bytes({**widths, index: width}) > limit:  # bytes grow almost evenly with the width
            width = max(1, width * 15 // 16)
        return self._aligned_width(index, -(-n // -(-n // width)))

    def _aligned_width(self, index: str, width: int) -> int:
        """Return a width of panels, at most *width*, with which panels begin where cyclic blocks begin."""
        specs = (f.layout.cyclic(f.indices.index(index)) for f in self.problem.factors if index in f.indices)
        lengths = {spec.block for spec in specs if spec is not None}
        common_multiple = 1
        for length in lengths:
            common_multiple = common_multiple * length // gcd(common_multiple, length)
        if width >= common_multiple:
            return width // common_multiple * common_multiple
        return next(w for w in range(width, 0, -1) if all(w % length == 0 or length % w == 0 for length in lengths))

    def _panel_bytes(self, widths: dict[str, int]) -> float:
        """Return the bytes that the factors that move take in panels of these lengths."""
        lengths = self.problem.lengths
        total = 0.0
        for factor, _, size in self._moving_factors:
            for index in factor.indices:
                if index in widths:
                    p = self.blocks[index]
                    size *= -(-widths[index] // p) / -(-lengths[index] // p)
            total += size
            if factor is self.problem.result and self.share_count > 1:
                share_bytes = self._elements_added(widths) * factor.dtype.itemsize
                total += (self.share_count + 1) * share_bytes
        return total

    def _elements_added(self, widths: dict[str, int]) -> float:
        """Return the most elements of the result that a device adds up for a panel of these lengths."""
        result, share, partial = self.problem.result, 1.0, 1.0
        for axis, (index, n, p) in enumerate(zip(result.indices, result.shape, self._result_blocks, strict=True)):
            width = widths.get(index, n)
            share *= self._owned_count(result.layout.cyclic(axis), n, p, width)
            partial *= -(-width // self.blocks[index])
        return min(share, max(partial / self.share_count, 1.0)) if prod(self._result_blocks) == 1 else share

    @cached_property
    def _result_blocks(self) -> list[int]:
        """Into how many blocks each axis of the result is cut."""
        return [devices_along(self.problem.mesh, names) for names in self.problem.result.layout.axes]

    @staticmethod
    def _owned_count(cyclic: Cyclic | None, n: int, p: int, width: int) -> int:
        """Return how many of *width* elements of an axis of *n*, cut into *p* blocks, one device has at most."""
        return min(width, -(-n // p) if cyclic is None else max(cyclic.block, -(-width // p)))

    def _panels(self, order: tuple[str, ...], widths: tuple[int, ...], limit: float) -> PanelLoops | None:
        if self._moving_factors and self._panel_bytes(dict(zip(order, widths, strict=True))) > limit:
            return None
        counts = [-(-self.problem.lengths[i] // width) for i, width in zip(order, widths, strict=True)]
        moved_bytes = busiest_bytes = 0.0
        for factor, received, _ in self._moving_factors:
            loop_numbers = [number for number, index in enumerate(order) if index in factor.indices]
            innermost = max(loop_numbers, default=-1)
            received *= prod(counts[n] for n in range(innermost + 1) if order[n] not in factor.indices)
            moved_bytes += received
            for number in loop_numbers:
                axis = factor.indices.index(order[number])
                n, p = factor.shape[axis], factor.layout.num_shards(axis)
                received *= self._owned_count(factor.layout.cyclic(axis), n, p, widths[number]) * p / widths[number]
            busiest_bytes += received
        sum_loops = sum(index not in self.problem.result.indices for index in order)
        return PanelLoops(tuple(zip(order, widths, strict=True)), moved_bytes, busiest_bytes, sum_loops, prod(counts))


def _is_better(a: PanelLoops, b: PanelLoops) -> bool:
    return (a.busiest_bytes, a.summed_loops, a.panels) < (b.busiest_bytes, b.summed_loops, b.panels)


# -- the search -------------------------------------------------------------------------------------------------------


class GridChoice(NamedTuple):
    """A grid, its panels, and its cost in seconds by the model."""

    grid: IndexGrid
    loops: PanelLoops
    seconds: float


@lru_cache(maxsize=1024)
def cheapest_contraction(problem: Problem, limit: int | None, machine: Machine) -> Contraction:
    """Return the plan of a contraction that costs the least by the model, and keeps to the scratch limit.

    `ScratchTooSmallError` if no plan does. None is the default limit, or the minimum if that is more.
    """
    grids, start_grids = _grids(problem, machine)
    minimum = min(map(_minimum_scratch, start_grids))  # the same for every machine
    if limit is not None and limit < minimum:
        raise ScratchTooSmallError(minimum)
    usable_limit = float(max(DEFAULT_SCRATCH, minimum) if limit is None else limit)
    best = _best_grid(grids, start_grids, usable_limit, machine)
    assert best is not None
    grid = best.grid
    return Contraction(
        grid.problem.operands,
        grid.problem.result,
        tuple(grid.cut.items()),
        best.loops.loops,
        int(usable_limit),
        machine,
    )


def _best_grid(
    grids: list[IndexGrid], start_grids: list[IndexGrid], limit: float, machine: Machine
) -> GridChoice | None:
    """Return the cheapest grid with panels along as few indices as possible; None if none keeps to the limit."""
    candidates = (_best_along(count, grids, start_grids, limit, machine) for count in range(1, _MAX_LOOPS + 1))
    return next((candidate for candidate in candidates if candidate is not None), None)


def _best_along(
    loop_count: int, grids: list[IndexGrid], start_grids: list[IndexGrid], limit: float, machine: Machine
) -> GridChoice | None:
    fewest_bytes, loops_by_grid = inf, dict[int, PanelLoops | None]()

    def loops_of(grid: IndexGrid) -> PanelLoops | None:
        if id(grid) not in loops_by_grid:
            loops_by_grid[id(grid)] = grid.loops(_panel_limit(limit, grid.problem.mesh), loop_count)
        return loops_by_grid[id(grid)]

    for grid in start_grids:
        loops = loops_of(grid)
        if loops is not None:
            fewest_bytes = min(fewest_bytes, loops.bytes_moved)
    best: GridChoice | None = None
    for grid in sorted(grids, key=lambda grid: grid.seconds(machine, grid.bytes_moved)):
        if best is not None and grid.seconds(machine, grid.bytes_moved) >= best.seconds:
            break
        if grid.bytes_moved > TOLERATED * fewest_bytes:
            continue
        loops = loops_of(grid)
        if loops is None or loops.bytes_moved > TOLERATED * fewest_bytes:
            continue
        seconds = grid.seconds(machine, loops.busiest_bytes, loops.panels)
        if best is None or seconds < best.seconds:
            best = GridChoice(grid, loops, seconds)
    return best


class ScratchTooSmallError(ShapeError):
    """The scratch limit is below the *minimum*, in bytes."""

    def __init__(self, minimum: int) -> None:
        super().__init__(f"too little scratch for a contraction: the minimum is {minimum} bytes")
        self.minimum = minimum


def _panel_limit(limit: float, mesh: Mesh) -> float:
    return limit - pack_limit(int(limit), mesh) - local_limit(int(limit))


def _minimum_scratch(grid: IndexGrid) -> int:
    """Return the lowest scratch limit with which panels of *grid* fit."""
    panel_bytes, mesh = grid.minimum(), grid.problem.mesh
    if not grid.moves:
        return 0
    limit = panel_bytes + pack_limit(0, mesh) + local_limit(0)
    while _panel_limit(limit, mesh) < panel_bytes:
        limit += max(1.0, panel_bytes - _panel_limit(limit, mesh))
    return ceil(limit)


def _grids(problem: Problem, machine: Machine) -> tuple[list[IndexGrid], list[IndexGrid]]:
    """Return the grids to choose from, and those among them that keep an operand or the result."""
    visited: dict[tuple[str | None, ...], IndexGrid] = {}
    start_grids = [_visit(problem, assignment, visited) for assignment in _first_grids(problem)]
    for start in start_grids:
        _climb(start, machine, visited)
    grids = list(visited.values())
    split_mesh = _split_mesh(problem.mesh)
    best = min(grids, key=lambda grid: grid.seconds(machine, grid.bytes_moved))
    if split_mesh is not None and best.bytes_moved > 0:
        split_problem, split_visited = problem.on(split_mesh), dict[tuple[str | None, ...], IndexGrid]()
        factors_by_name = {name: _factors_of(problem.mesh, split_mesh, name) for name, _ in problem.mesh.dims}
        assignment = {factor: best.assignment[name] for name, factors in factors_by_name.items() for factor in factors}
        _climb(_visit(split_problem, assignment, split_visited), machine, split_visited)
        grids += list(split_visited.values())[1:]
    return grids, start_grids


def _first_grids(problem: Problem) -> Iterator[IndexAssignment]:
    """Return grids that keep a factor: mesh dimensions that do not cut it cut the same indices as in other factors."""
    for kept_factor in (problem.result, *problem.operands):
        assignment: IndexAssignment = {name: None for name, _ in problem.mesh.dims}
        for factor in (kept_factor, *problem.factors):
            for index, names in zip(factor.indices, factor.layout.axes, strict=True):
                for name in names:
                    if assignment[name] is None and (factor is kept_factor or index not in kept_factor.indices):
                        assignment[name] = index
        yield assignment


def _visit(
    problem: Problem, assignment: IndexAssignment, visited: dict[tuple[str | None, ...], IndexGrid]
) -> IndexGrid:
    key = tuple(assignment.values())
    if key not in visited:
        visited[key] = IndexGrid(problem, assignment)
    return visited[key]


def _climb(start: IndexGrid, machine: Machine, visited: dict[tuple[str | None, ...], IndexGrid]) -> None:
    """Visit grids that are cheaper and cheaper: each differs from the last one in one mesh dimension."""
    problem, best = start.problem, start
    cost = best.seconds(machine, best.bytes_moved)
    indices: list[str | None] = [index for index, n in problem.lengths.items() if n > 1]
    improved = True
    while improved:
        improved = False
        for name, size in problem.mesh.dims:
            if size == 1:
                continue
            for index in (*indices, None):
                if index != best.assignment[name]:
                    grid = _visit(problem, {**best.assignment, name: index}, visited)
                    seconds = grid.seconds(machine, grid.bytes_moved)
                    if seconds < cost:
                        best, cost, improved = grid, seconds, True


@lru_cache(maxsize=64)
def _split_mesh(mesh: Mesh) -> Mesh | None:
    """Return a mesh with two dimensions for each one whose size is no prime; None if all sizes are primes."""
    dims: list[tuple[str, int]] = []
    for name, size in mesh.dims:
        factor = next(n for n in range(isqrt(size), 0, -1) if size % n == 0)
        dims += [(name, size)] if factor == 1 else [(f"{name}/{factor}", factor), (f"{name}/{size}", size // factor)]
    return None if len(dims) == len(mesh.dims) else Mesh(mesh.ranks, dims)


def _factors_of(mesh: Mesh, split: Mesh, name: str) -> list[str]:
    strides = range(mesh.stride(name), mesh.stride(name) * mesh.dim_size(name))
    return [dim for dim, size in split.dims if size > 1 and split.stride(dim) in strides] or [name]
