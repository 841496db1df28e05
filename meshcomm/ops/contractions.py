"""Einstein sums and matrix products of tensors: `meshcomm.plans.einsum` says how, and here they run."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm._arguments import as_dtype, as_shape, counted, integer, quote
from meshcomm._tracing import is_traced, traced, untraced
from meshcomm._types import Array, DType, Shape
from meshcomm.arrays.compile import Move, prepare
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.relayout import relayout
from meshcomm.arrays.views import memory_order
from meshcomm.errors import LayoutError, ShapeError
from meshcomm.layouts.boxes import Box
from meshcomm.layouts.cyclic import Runs, Span
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.layout_text import specs_text
from meshcomm.layouts.machine import Machine
from meshcomm.layouts.mesh import Mesh
from meshcomm.layouts.slicing import Stretch
from meshcomm.memory.blocks import new_block
from meshcomm.ops.diagonals import diagonal
from meshcomm.ops.elementwise import agree_on_plain
from meshcomm.ops.local_products import Block, multiply, stored, summed_up
from meshcomm.ops.rules import mesh_of, shape_of
from meshcomm.plans.contraction import Contraction, Factor, Panel, local_limit, only_cuts
from meshcomm.plans.einsum import (
    EinsumPlan,
    Expression,
    checked_layout,
    from_lists,
    parsed,
    planned,
    repeated_axes,
    without_repeats,
)
from meshcomm.plans.grids import Problem, cheapest_contraction
from meshcomm.plans.plan import Plan
from meshcomm.ranks.calls import Collective, leave_with
from meshcomm.ranks.local_errors import refusable
from meshcomm.ranks.meshes import location_in, location_text
from meshcomm.ranks.teams import Location
from meshcomm.transport.exchange import Order

KEPT_PANELS = 64
"""Panels of a contraction whose exchanges are kept for the next call. Those of more panels are made each time."""

Casting: TypeAlias = Literal["no", "equiv", "safe", "same_kind", "unsafe"]

Given: TypeAlias = "DTensor | ArrayLike | tuple[Shape, DTypeLike, Layout]"
"""An operand of a plan: a tensor, an array, or a shape, a dtype and a layout."""


@refusable
def einsum(
    subscripts: object,
    *operands: object,
    layout: Layout | None = None,
    dtype: DTypeLike | None = None,
    max_scratch_bytes: int | None = None,
) -> DTensor:
    """Return the Einstein sum of operands, as `numpy.einsum` defines it. Collective over the mesh if elements move.

    One operand at least is a tensor; all tensors are on one mesh, in any layouts. No device holds more than its share
    of operands and result, and the scratch limit: what does not fit moves in panels. `plan_einsum` tells how.

    By default each axis of the result is cut as in the first operand that cuts it, with the mesh dimensions that are
    unused yet. Those that cut operands, but nothing of the result, then cut its longest axis that is not cut: so
    ``[unsharded, x] @ [x, unsharded]`` is ``[x, unsharded]``. The sums are in one order, the same on all replicas.

    ``ShapeError`` if subscripts or shapes do not fit, or for a scratch limit below the minimum, which it names;
    ``MeshError`` for tensors on several meshes; ``LayoutError`` if *layout* is not for the result.

    Parameters
    ----------
    subscripts: as "ij,jk->ik"; or an operand, and then a list of integers, and so on, as NumPy has it
    operands: tensors, and arrays and numbers that are equal on all ranks
    layout: of the result
    dtype: of the result and of the arithmetic, by default as NumPy's
    max_scratch_bytes: bytes that a rank may use beyond its blocks of operands and result: by default 32 MiB, or the
        minimum if that is more. The results of three and more operands in between come on top

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     a = mc.distribute(np.arange(4.0).reshape(2, 2), rows)
    ...     return mc.einsum("ij,jk->k", a, a).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[8.0], [14.0]]
    """
    return contracted("einsum", subscripts, operands, layout=layout, dtype=dtype, limit=max_scratch_bytes)


def contracted(
    name: str,
    subscripts: object,
    operands: Sequence[object],
    *,
    layout: Layout | None = None,
    dtype: DTypeLike | None = None,
    limit: int | None = None,
    casting: Casting = "same_kind",
) -> DTensor:
    """Return the Einstein sum of operands. *name* is the operation; other arguments are those of `einsum`.

    *casting* is NumPy's rule for the conversion to *dtype*.
    """
    text, given = _arguments(subscripts, operands)
    if any(map(is_traced, given)):
        options: dict[str, object] = {} if dtype is None else {"dtype": dtype}
        result: DTensor = traced(np.einsum, (text, *given), **options)
        return result if layout is None else relayout(result, layout)
    values = [unwrapped(x) for x in given]
    mesh = mesh_of(values)
    known = agree_on_plain(name, values, mesh)
    expression = parsed(text, tuple(map(shape_of, known)))
    tensors = [x if isinstance(x, DTensor) else _replicated(x, mesh) for x in known]
    kind = result_kind(name, [tensor.dtype for tensor in tensors], dtype, casting)
    target = None
    if layout is not None:
        target = checked_layout(layout, _shape(expression, [t.shape for t in tensors]), mesh)
    limit = _checked_limit(limit)
    found = [_without_repeats(t, indices) for t, indices in zip(tensors, expression.operands, strict=True)]
    factors = tuple(_factor(tensor, indices) for tensor, indices in found)
    plan = planned(expression, factors, target, kind, limit, Machine())
    left = [tensor for tensor, _ in found]
    for turn, problem in zip(plan.path, plan.problems, strict=True):
        taken = [left[number] for number in turn]
        for number in sorted(turn, reverse=True):
            del left[number]
        left.append(_contract(name, problem, taken, limit))
    return left[-1]


def plan_einsum(
    subscripts: object,
    *operands: Given,
    layout: Layout | None = None,
    dtype: DTypeLike | None = None,
    max_scratch_bytes: int | None = None,
    machine: Machine | None = None,
) -> EinsumPlan:
    """Return how `einsum` contracts operands: print it to see what moves, in how many panels, and what it costs.

    Arguments and errors are those of `einsum`; an operand may also be a shape, a dtype and a layout. *machine* is the
    cost model; `einsum` uses ``meshcomm.machine_of(mesh)``. The plan needs no MPI.

    >>> import meshcomm as mc
    >>> mesh = mc.Mesh(range(4), [("x", 2), ("y", 2)])
    >>> matrix = (4096, 4096), "f8", mc.Layout(["x", "y"], mesh)
    >>> plan = mc.plan_einsum("ij,jk->ik", matrix, matrix)
    >>> plan.bytes_moved // 2**20, plan.layout.sharding_specs
    (64, ['x', 'y'])
    """
    text, given = _arguments(subscripts, operands)
    tensors = [unwrapped(untraced(x)) for x in given]
    meshes = [_mesh_of(x) for x in tensors]
    mesh = next((each for each in meshes if each is not None), None)
    if mesh is None:
        raise LayoutError("one of the operands must be a DTensor, or a shape, a dtype and a layout")
    described = [_described(x, mesh) for x in tensors]
    expression = parsed(text, tuple(shape for shape, _, _ in described))
    kind = result_kind("einsum", [each for _, each, _ in described], dtype, "same_kind")
    target = None
    if layout is not None:
        target = checked_layout(layout, _shape(expression, [shape for shape, _, _ in described]), mesh)
    factors = tuple(
        without_repeats(Factor(indices, shape, each, dtype_of))
        for indices, (shape, dtype_of, each) in zip(expression.operands, described, strict=True)
    )
    return planned(expression, factors, target, kind, _checked_limit(max_scratch_bytes), machine or Machine())


def _arguments(subscripts: object, operands: Sequence[object]) -> tuple[str, list[Any]]:
    if isinstance(subscripts, str):
        return subscripts, list(operands)
    return from_lists((subscripts, *operands))


def _mesh_of(x: object) -> Mesh | None:
    if isinstance(x, DTensor):
        return x.mesh
    return x[2].mesh if isinstance(x, tuple) and len(x) == 3 and isinstance(x[2], Layout) else None


def _described(x: object, mesh: Mesh) -> tuple[Shape, DType, Layout]:
    """Return shape, dtype and layout of an operand of a plan; errors as for a tensor that cannot be."""
    if isinstance(x, DTensor):
        shape, dtype, layout = x.shape, x.dtype, x.layout
    elif isinstance(x, tuple) and _mesh_of(x) is not None:
        shape, dtype, layout = as_shape(x[0]), as_dtype(x[1]), x[2]
    else:
        array = np.asarray(x)
        return array.shape, as_dtype(array.dtype), Layout.replicated(mesh, array.ndim)
    return shape, dtype, checked_layout(layout, shape, mesh)


def _checked_limit(limit: int | None) -> int | None:
    if limit is None:
        return None
    number = integer(limit, "max_scratch_bytes", ShapeError)
    if number < 0:
        raise ShapeError(f"max_scratch_bytes must be zero or more, not {quote(number)}")
    return number


def result_kind(name: str, dtypes: Sequence[DType], dtype: DTypeLike | None, casting: Casting) -> DType:
    """Return the dtype of a sum of products: *dtype*, if operands can be converted to it; ``TypeError`` as NumPy's."""
    kind = np.result_type(*dtypes) if dtype is None else np.dtype(dtype)
    for each in dtypes:
        if not np.can_cast(each, kind, casting):
            raise TypeError(f"{name}: an operand of {each} cannot become {kind} by the rule {casting!r}")
    if kind.kind not in "biufc":
        raise TypeError(f"{name} multiplies numbers, not {kind}")
    return as_dtype(kind.newbyteorder("="))


def _shape(expression: Expression, shapes: Sequence[Shape]) -> Shape:
    lengths = {
        index: n
        for indices, shape in zip(expression.operands, shapes, strict=True)
        for index, n in zip(indices, shape, strict=True)
    }
    return tuple(lengths[index] for index in expression.result)


def _replicated(x: object, mesh: Mesh) -> DTensor:
    """Return an array or a number as a tensor that shares its memory: it is only read."""
    array = np.asarray(x)
    dtype = as_dtype(array.dtype)
    outside = location_in(mesh) is None
    return DTensor(None if outside else array, Layout.replicated(mesh, array.ndim), array.shape, dtype)


def _without_repeats(tensor: DTensor, indices: str) -> tuple[DTensor, str]:
    """Return the diagonal of a tensor with repeated indices. Collective if its elements have to move."""
    while (found := repeated_axes(indices)) is not None:
        tensor = diagonal(tensor, 0, *found)
        indices = "".join(i for axis, i in enumerate(indices) if axis not in found) + indices[found[0]]
    return tensor, indices


def _factor(tensor: DTensor, indices: str) -> Factor:
    return Factor(indices, tensor.shape, tensor.layout, tensor.dtype)


# -- running ----------------------------------------------------------------------------------------------------------


def _contract(name: str, problem: Problem, tensors: list[DTensor], limit: int | None) -> DTensor:
    """Return the result of a contraction. Collective over the mesh if elements move."""
    mesh, blocks = tensors[0].mesh, [t.local for t in tensors]
    contraction, result = cheapest_contraction(problem, limit, Machine()), problem.result
    if not contraction.moves:  # then it would not by any other machine
        here = location_in(mesh)
        block = None if here is None else _Runs(contraction, (None,) * len(tensors), here)(*blocks)
    else:
        orders = tuple(map(memory_order, tensors))
        subject = (name, problem, limit, orders)
        block = _CONTRACT(name, (mesh, mesh), subject, subject, tuple(blocks))
    found = result.layout  # of the plan, which may be kept from another world with an equal mesh
    layout = found if found.mesh is mesh else Layout(found.axes, mesh)
    return DTensor(block, layout, result.shape, result.dtype)


def _text(name: str, problem: Problem, limit: int | None, orders: tuple[Order, ...]) -> str:
    texts = (
        f"{factor.shape} {factor.dtype} in {specs_text(factor.layout.sharding_specs)}"
        + ("" if order is None else f" with axes in the order {order}")
        for factor, order in zip(problem.operands, orders, strict=True)
    )
    subscripts = f"{','.join(f.indices for f in problem.operands)}->{problem.result.indices}"
    within = "" if limit is None else f" within {quote(limit)} bytes of scratch"
    target = f"{problem.result.dtype} in {specs_text(problem.result.layout.sharding_specs)}"
    return f"{name} {subscripts} of {', '.join(texts)} on {location_text(problem.mesh)} to {target}{within}"


def _built(
    name: str, problem: Problem, limit: int | None, orders: tuple[Order, ...], here: Location
) -> Callable[..., Array]:
    return _Runs(cheapest_contraction(problem, limit, here.team.machine), orders, here)


_CONTRACT = Collective[Array](_text, _built)


class _Runs:
    """A contraction on one device, ready to run.

    Parameters
    ----------
    contraction: its plan
    orders: of the axes of the operands in memory: see `meshcomm.arrays.views.memory_order`
    here: where this rank is
    """

    def __init__(self, contraction: Contraction, orders: tuple[Order, ...], here: Location) -> None:
        self._contraction, self._orders, self._here = contraction, orders, here
        self._kept: dict[object, Move] | None = {} if contraction.count() <= KEPT_PANELS else None
        first = next(contraction.panels())
        self._shape = contraction.result.layout.block_shape(contraction.result.shape, here.device)
        for number, operand in enumerate(contraction.operands):
            plan = contraction.moved(operand, first)
            if plan is not None and not only_cuts(plan):
                self._move(number, first, plan, whole=True)
        for number, plan in enumerate(contraction.reduced(first)):
            self._move(-1 - number, first, plan, whole=False)

    def __call__(self, *blocks: Array) -> Array:
        """Return the block of the result from the blocks of the operands. Collective over the mesh if they move."""
        try:
            # An overflow, which concerns one rank, must not stop it while the others go on to the exchange.
            with np.errstate(all="ignore") if self._contraction.moves else nullcontext():
                return self._run(blocks)
        except BaseException as error:
            if self._contraction.moves:
                leave_with(error, self._here.team)
            raise

    def _run(self, blocks: tuple[Array, ...]) -> Array:
        contraction, limit = self._contraction, local_limit(self._contraction.scratch_limit)
        operands, result, device = contraction.operands, contraction.result, self._here.device
        into = new_block(self._shape, result.dtype)
        current: list[Block | None] = [None] * len(operands)
        partial: Array | None = None
        for panel in contraction.panels():
            for number in panel.fetched:
                out = current[number]
                current[number] = None
                found = self._fetched(number, panel, blocks[number], out)
                current[number] = Block(found, operands[number].indices)
            taken = [block for block in current if block is not None]
            target = _view(into, contraction.slice_of(result, panel, device).block)
            if contraction.keeps_result:
                adds = panel.again or not panel.begins
                multiply(taken, Block(target, result.indices), adds=adds, limit=limit)
                continue
            if panel.begins or partial is None:
                partial = new_block(self._partial_shape(panel), result.dtype)
            multiply(taken, Block(partial, result.indices), adds=not panel.begins, limit=limit)
            if panel.ends:
                stored(self._reduced(panel, partial), target, adds=panel.again)
                partial = None
        return into

    def _fetched(self, number: int, panel: Panel, block: Array, out: Block | None) -> Array:
        """Return what this device multiplies of an operand; *out* is the memory of the last panel."""
        contraction, device = self._contraction, self._here.device
        operand = contraction.operands[number]
        plan = contraction.moved(operand, panel)
        if plan is not None and not only_cuts(plan):
            order = self._orders[number]
            in_memory = block if order is None else block.transpose(np.argsort(order))
            whole = in_memory.flags.c_contiguous
            move = self._move(number, panel, plan, whole=whole)
            if not whole:
                in_memory = _view(block, contraction.slice_of(operand, panel, device).block)
            shape = plan.target.block_shape(plan.shape, device)
            fits = out is not None and out.array.shape == shape
            found = move(in_memory, out.array if fits and out is not None else None)
            assert found is not None
            return found
        kept = contraction.slice_of(operand, panel, device)
        view = _view(block, kept.block)
        if plan is None:
            return view
        had, has = (layout.block_box(plan.shape, device) for layout in (kept.layout, plan.target))
        return _view(view, tuple(_within(a, b) for a, b in zip(had, has, strict=True)))

    def _move(self, number: int, panel: Panel, plan: Plan, *, whole: bool) -> Move:
        """Return the relayout of an operand for a panel, or of a result for which *number* is negative.

        It begins with the *whole* block, or with the slice for the panel.
        """
        key = (number, tuple(panel.taken.items()), whole)
        if self._kept is not None and key in self._kept:
            return self._kept[key]
        if number >= 0 and whole:
            operand = self._contraction.operands[number]
            starts = [panel.taken.get(index, Stretch(0, 0)).start for index in operand.indices]

            def held(device: int) -> Box:
                box = operand.layout.block_box(operand.shape, device)
                return tuple(_shifted(span, start) for span, start in zip(box, starts, strict=True))

            move = prepare(plan, self._here, self._orders[number], held)
        else:
            move = prepare(plan, self._here)
        if self._kept is not None:
            self._kept[key] = move
        return move

    def _partial_shape(self, panel: Panel) -> Shape:
        contraction, result = self._contraction, self._contraction.result
        found = contraction.slice_of(result, panel, None)
        layout = Layout(contraction.wanted(result, panel), contraction.mesh)
        return layout.block_shape(found.shape, self._here.device)

    def _reduced(self, panel: Panel, partial: Array) -> Array:
        """Return the block of the result for a panel from what each device multiplied. Collective over the mesh."""
        contraction = self._contraction
        first, *others = contraction.reduced(panel)
        summed = bool(contraction.summed)
        found = self._move(-1, panel, first, whole=False)(partial[None] if summed else partial, None)
        assert found is not None
        if summed:
            found = summed_up(found)
        for number, plan in enumerate(others, 2):
            found = self._move(-number, panel, plan, whole=False)(found, None)
            assert found is not None
        return found


def _view(array: Array, slices: tuple[slice, ...]) -> Array:
    """Return a slice of *array*, which is an array also if it has no axes."""
    found: Array = array[(*slices, ...)]  # type: ignore[arg-type]
    return found


def _shifted(span: Span, start: int) -> Span:
    """Return a span in indices that begin at *start*."""
    if isinstance(span, Runs):
        return span._replace(first=span.first - start)
    return span[0] - start, span[1] - start


def _within(had: Span, has: Span) -> slice:
    """Return where the elements *has* are among those of *had*: a stretch of them, or all."""
    if had == has:
        return slice(None)
    assert not isinstance(had, Runs)
    assert not isinstance(has, Runs)
    return slice(has[0] - had[0], has[1] - had[0]) if has[0] < has[1] else slice(0, 0)


# -- matrix products --------------------------------------------------------------------------------------------------


@refusable
def matmul(a: DTensor | ArrayLike, b: DTensor | ArrayLike) -> DTensor:
    """Return the product of matrices, of stacks of them, or of vectors. Collective over the mesh if elements move.

    It is an `einsum`, which has the rules of layouts and memory: axes of the result are cut as those of *a*, and then
    as those of *b*. One of the operands may be a plain array. ``ShapeError`` if the shapes do not fit, ``MeshError``
    for tensors on several meshes.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     a = mc.distribute(np.arange(4).reshape(2, 2), mc.Layout([mc.UNSHARDED, "x"], mesh))
    ...     return (a @ np.eye(2, dtype=int)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[1])
    [[2, 3]]
    """
    if is_traced(a) or is_traced(b):
        product: DTensor = traced(np.matmul, (a, b))
        return product
    operands = agree_on_plain("numpy.matmul", [unwrapped(x) for x in (a, b)], mesh_of([unwrapped(x) for x in (a, b)]))
    return contracted("numpy.matmul", product_subscripts(*map(shape_of, operands)), operands)


def product_subscripts(a: Shape, b: Shape) -> str:
    """Return the subscripts of the product of arrays of these shapes; ``ShapeError`` if they do not fit.

    >>> product_subscripts((2, 3), (3,)), product_subscripts((5, 2, 3), (3, 4))
    ('...ij,j->...i', '...ij,...jk->...ik')
    """
    for name, shape in (("first", a), ("second", b)):
        if not shape:
            raise ShapeError(f"matmul takes tensors of 1 axis or more, but the {name} is a number: use *")
    if a[-1] != b[0 if len(b) == 1 else -2]:
        raise ShapeError(
            f"matmul of shapes {a} and {b}: the last axis of the first has {counted(a[-1], 'element')} "
            f"and the {'first' if len(b) < 3 else 'last but one'} axis of the "
            f"second {b[0 if len(b) == 1 else -2]}; they must be equal"
        )
    left, right = "j" if len(a) == 1 else "...ij", "j" if len(b) == 1 else "...jk"
    result = ("" if left == right == "j" else "...") + "i" * (len(a) > 1) + "k" * (len(b) > 1)
    return f"{left},{right}->{result}"
