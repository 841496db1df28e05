"""Einstein sums and matrix products of tensors: `meshcomm.numpy.contractions.einsum` plans them, here they run."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import starmap
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.align import tensors_of
from meshcomm.blocks.exchanges import Move, Prepared, SharedBlocks, move
from meshcomm.blocks.make import make, on_device
from meshcomm.blocks.session import Session, session
from meshcomm.blocks.views import axes_in_memory
from meshcomm.core._arguments import as_dtype, as_shape, counted, quote
from meshcomm.core._callers import not_raising_float_errors
from meshcomm.core._tracing import call_traced, is_traced, untraced
from meshcomm.core._types import Array, Casting, Shape, Slices
from meshcomm.core.arrays._recipes import Call, Recipe, completed
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.boxes import Box
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.partition import Runs, Span, length_of
from meshcomm.core.layouts.refinement import same_grid
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.core.ranks.meshes import mesh_description
from meshcomm.errors import LayoutError, MeshError, ShapeError
from meshcomm.numpy.contractions.contraction import Contraction, ContractionPanel, local_limit, only_cuts
from meshcomm.numpy.contractions.einsum import EinsumOperand, EinsumPlan, from_lists, plan_of, repeated_axes
from meshcomm.numpy.contractions.grids import Problem, cheapest_contraction
from meshcomm.numpy.contractions.local_products import IndexedBlock, multiply, store_product, sum_partials
from meshcomm.numpy.contractions.shared_products import Order, SharedProduct, can_share, moving_operands
from meshcomm.numpy.contractions.short_products import product_of_one_device, short_product
from meshcomm.numpy.elementwise.signatures import operation
from meshcomm.numpy.indexing.diagonals import diagonal
from meshcomm.numpy.reductions.reductions import inner_of_same_layout

KEPT_PANELS = 64
"""Panels. A contraction of up to this many keeps its exchanges for the next call; one of more makes them each time."""

TensorOrSpec: TypeAlias = "DTensor | ArrayLike | tuple[Shape, DTypeLike, Layout]"
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

    At least one operand is a tensor; all tensors are on one mesh, in any layouts. No device holds more than its blocks
    of operands and result, and scratch up to the limit: larger operands move in panels. `plan_einsum` shows how.

    By default each axis of the result is cut as in the first operand that cuts it, with the mesh dimensions that are
    unused yet. Those that cut operands, but nothing of the result, then cut its longest axis that is not cut: so
    ``[unsharded, x] @ [x, unsharded]`` is ``[x, unsharded]``. The sums are in one order, the same on all replicas.

    ``ShapeError`` if subscripts or shapes do not fit, or for a scratch limit below the minimum, which the error names;
    ``MeshError`` for tensors on several meshes; ``LayoutError`` if the result cannot have *layout*.

    Parameters
    ----------
    subscripts: text such as "ij,jk->ik"; or operands and lists of integers in turn, as NumPy takes them
    operands: tensors, and arrays and numbers that are equal on all ranks
    layout: layout of the result
    dtype: dtype of the result and of the arithmetic; by default NumPy's
    max_scratch_bytes: scratch limit of a rank in bytes, without its blocks of operands and result; by default 32 MiB,
        or the minimum if that is more. Intermediate results of three and more operands are not counted

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     a = mc.distribute(np.arange(4.0).reshape(2, 2), rows)
    ...     return mc.einsum("ij,jk->k", a, a).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[8.0], [14.0]]
    """
    call = contracting("einsum", subscripts, operands, layout=layout, dtype=dtype, limit=max_scratch_bytes)
    return completed(call)


def contracting(
    name: str,
    subscripts: object,
    operands: Sequence[object],
    *,
    layout: Layout | None = None,
    dtype: DTypeLike | None = None,
    limit: int | None = None,
    casting: Casting = "same_kind",
) -> Call | DTensor:
    """Return the Einstein sum of operands, or the call that makes it: of one contraction, if no operand is an array.

    *name* is the operation; other arguments are those of `einsum`.

    *subscripts* may be a function of the shapes of the operands. *casting* is NumPy's rule for the conversion to
    *dtype*.
    """
    subscripts_text, arguments = arguments_of(subscripts, operands)
    if any(map(is_traced, arguments)):
        options: dict[str, object] = {} if dtype is None else {"dtype": dtype}
        result: DTensor = call_traced(np.einsum, (subscripts_text, *arguments), **options)
        return result if layout is None else relayout(result, layout)
    tensors = tensors_of(name, arguments)
    subscripts_text = (
        subscripts_text if isinstance(subscripts_text, str) else subscripts_text(*(tensor.shape for tensor in tensors))
    )
    operand_specs = tuple([EinsumOperand(tensor.shape, tensor.dtype, tensor.layout) for tensor in tensors])
    plan = plan_of(subscripts_text, operand_specs, layout=layout, dtype=dtype, casting=casting, limit=limit)
    for number, indices in enumerate(plan.expression.operands):
        if len(set(indices)) < len(indices):
            tensors[number] = _without_repeats(tensors[number], indices)
    has_no_repeats = all(len(set(indices)) == len(indices) for indices in plan.expression.operands)
    if len(plan.path) == 1 and has_no_repeats and all(isinstance(x, DTensor) for x in arguments):
        (positions,), problem_and_plan, limit = plan.path, (plan.problems[0], plan.contractions[0]), plan.limit

        def run(*operands: DTensor) -> DTensor:
            return _contract(name, problem_and_plan, [operands[number] for number in positions], limit)

        return Call(Recipe(run), tuple(arguments))
    for positions, problem, contraction in zip(plan.path, plan.problems, plan.contractions, strict=True):
        step_operands = [tensors[number] for number in positions]
        for number in sorted(positions, reverse=True):
            del tensors[number]
        tensors.append(_contract(name, (problem, contraction), step_operands, plan.limit))
    return tensors[-1]


def plan_einsum(
    subscripts: object,
    *operands: TensorOrSpec,
    layout: Layout | None = None,
    dtype: DTypeLike | None = None,
    max_scratch_bytes: int | None = None,
    machine: Machine | None = None,
) -> EinsumPlan:
    """Return how `einsum` contracts operands: print it to see what moves, in how many panels, and what it costs.

    The plan needs no MPI. Errors are those of `einsum`.

    Parameters
    ----------
    subscripts, operands: arguments of `einsum`; an operand may also be a tuple of shape, dtype and layout
    layout, dtype: layout and dtype of the result
    max_scratch_bytes: scratch limit in bytes, as in `einsum`
    machine: constants of the cost model; `einsum` uses ``meshcomm.machine_of(mesh)``

    >>> import meshcomm as mc
    >>> mesh = mc.Mesh(range(4), [("x", 2), ("y", 2)])
    >>> matrix = (4096, 4096), "f8", mc.Layout(["x", "y"], mesh)
    >>> plan = mc.plan_einsum("ij,jk->ik", matrix, matrix)
    >>> plan.bytes_moved // 2**20, plan.layout.sharding_specs
    (64, ['x', 'y'])
    """
    subscripts_text, arguments = arguments_of(subscripts, operands)
    tensors = [unwrapped(untraced(x)) for x in arguments]
    mesh = next((operand_mesh for operand_mesh in map(_mesh_of, tensors) if operand_mesh is not None), None)
    if mesh is None:
        raise LayoutError("one of the operands must be a DTensor, or a shape, a dtype and a layout")
    specs = tuple(_plan_operand(x, mesh) for x in tensors)
    return plan_of(subscripts_text, specs, layout=layout, dtype=dtype, limit=max_scratch_bytes, machine=machine)


def arguments_of(subscripts: object, operands: Sequence[object]) -> tuple[Any, list[Any]]:
    """Return subscripts and operands from the arguments of `einsum` in either form."""
    if isinstance(subscripts, str) or (callable(subscripts) and not isinstance(subscripts, DTensor)):
        return subscripts, list(operands)
    return from_lists((subscripts, *operands))


def _mesh_of(x: object) -> Mesh | None:
    if isinstance(x, DTensor):
        return x.mesh
    return x[2].mesh if isinstance(x, tuple) and len(x) == 3 and isinstance(x[2], Layout) else None


def _plan_operand(x: object, mesh: Mesh) -> EinsumOperand:
    """Return an operand of a plan; the errors of a tensor with the same shape, dtype and layout."""
    if isinstance(x, DTensor):
        operand = EinsumOperand(x.shape, x.dtype, x.layout)
    elif isinstance(x, tuple) and _mesh_of(x) is not None:
        operand = EinsumOperand(as_shape(x[0]), as_dtype(x[1]), x[2])
        if operand.layout.ndim != len(operand.shape):
            raise LayoutError(f"shape {operand.shape} with a layout for {counted(operand.layout.ndim, 'axis')}")
        operand.layout.check_fits(operand.shape)
    else:
        array = np.asarray(x)
        operand = EinsumOperand(array.shape, as_dtype(array.dtype), Layout.replicated(mesh, array.ndim))
    if not same_grid(operand.layout.mesh, mesh):
        raise MeshError(f"operands must be on one mesh, but are on the {mesh} and the {operand.layout.mesh}")
    return operand


def _without_repeats(tensor: DTensor, indices: str) -> DTensor:
    """Return the diagonal of a tensor with repeated indices. Collective if its elements have to move."""
    while (axes := repeated_axes(indices)) is not None:
        tensor = diagonal(tensor, 0, *axes)
        indices = "".join(i for axis, i in enumerate(indices) if axis not in axes) + indices[axes[0]]
    return tensor


# -- running ----------------------------------------------------------------------------------------------------------


def _contract(
    name: str, problem_and_plan: tuple[Problem, Contraction], tensors: list[DTensor], limit: int | None
) -> DTensor:
    """Return the result of a contraction. Collective over the mesh if elements move."""
    (problem, contraction), mesh, block = problem_and_plan, tensors[0].mesh, None
    if contraction.moves:
        subject = (name, problem, limit, tuple(map(axes_in_memory, tensors)))
        with session(name, mesh) as scope:
            if scope is not None:
                block = _CONTRACT.run(scope, subject, subject, tuple([tensor._block for tensor in tensors]))
    else:  # nothing moves, whatever the constants of the machine
        block = on_device(
            mesh, lambda device: _local_contraction(contraction, device)(*[tensor._block for tensor in tensors])
        )
    planned_layout = problem.result.layout  # of the plan, which may be kept from another world with an equal mesh
    layout = planned_layout if planned_layout.mesh is mesh else Layout(planned_layout.axes, mesh)
    return make(block, layout, problem.result.shape, problem.result.dtype)


def _contraction_text(name: str, problem: Problem, limit: int | None, orders: tuple[Order, ...]) -> str:
    operand_texts = (
        f"{factor.shape} {factor.dtype} in {factor.layout.specs_text}"
        + ("" if order is not None and list(order) == sorted(order) else f" with axes in the order {order}")
        for factor, order in zip(problem.operands, orders, strict=True)
    )
    subscripts = f"{','.join(f.indices for f in problem.operands)}->{problem.result.indices}"
    limit_text = "" if limit is None else f" within {quote(limit)} bytes of scratch"
    result_text = f"{problem.result.dtype} in {problem.result.layout.specs_text}"
    return (
        f"{name} {subscripts} of {', '.join(operand_texts)} on {mesh_description(problem.mesh)} to "
        f"{result_text}{limit_text}"
    )


def _contraction_run(
    name: str, problem: Problem, limit: int | None, orders: tuple[Order, ...], scope: Session
) -> Callable[..., Array]:
    contraction = cheapest_contraction(problem, limit, scope.machine)
    shapes = _operand_shapes(contraction, scope.device)
    shared_blocks: SharedBlocks | None = None
    if can_share(contraction, orders):
        shared_blocks = SharedBlocks(
            scope, contraction.mesh, f"shared reads for {contraction!r}", len(moving_operands(contraction))
        )
    shared_product: SharedProduct | None = None
    panel_contraction = _PanelContraction(contraction, scope.device, orders, scope) if shared_blocks is None else None

    def contract(*blocks: Array) -> Array:
        nonlocal shared_product, panel_contraction
        # An overflow on one rank must not raise there while the others continue to the exchange.
        with not_raising_float_errors():
            result = None
            if shared_blocks is not None and shared_blocks.is_possible():
                shared_product = shared_product or SharedProduct(contraction, orders, scope.device, shared_blocks)
                result = shared_product(*blocks)
            if result is None:
                panel_contraction = panel_contraction or _PanelContraction(contraction, scope.device, orders, scope)
                result = panel_contraction(*blocks)
            return result

    def multiply_blocks(*blocks: Array) -> Array:
        block_error = _wrong_block_error(shapes, blocks)
        if block_error is not None:
            zeros = [new_block(shape, f.dtype) for shape, f in zip(shapes, contraction.operands, strict=True)]
            scope.join_and_raise(block_error, lambda: contract(*zeros))
        try:
            return contract(*blocks)
        except BaseException as error:
            scope.disable_after(error)
            raise

    return multiply_blocks


_CONTRACT = Prepared[Array](_contraction_text, _contraction_run)


def _operand_shapes(contraction: Contraction, device: int) -> list[Shape]:
    return [operand.layout.block_shape(operand.shape, device) for operand in contraction.operands]


def _wrong_block_error(shapes: list[Shape], blocks: Sequence[Array]) -> ShapeError | None:
    """Return an error if a block does not have the expected shape; else None."""
    for shape, block in zip(shapes, blocks, strict=True):
        if block.shape != shape:
            return ShapeError(
                f"a block has shape {block.shape}, but by shape and layout of its tensor it has {shape}: it was "
                "resized, or the tensor was made of a block that does not fit"
            )
    return None


class _Fetch(NamedTuple):
    """How a device gets the elements of an operand that it multiplies: a slice of its block, or a relayout of that.

    Parameters
    ----------
    number: number of the operand
    slices: slice of the block
    move: relayout of the operand; None if it stays
    from_whole_block: whether the relayout starts from the whole block
    order: order in memory of the axes of the whole block, if it is transposed
    shape: shape of the relaid block
    """

    number: int
    slices: tuple[slice, ...]
    move: Move | None = None
    from_whole_block: bool = False
    order: tuple[int, ...] | None = None
    shape: Shape = ()


class _PanelRun(NamedTuple):
    """The work of a device for a panel.

    Parameters
    ----------
    fetches: operands to fetch for the panel
    result_slices: slice of the block of the result
    partial_shape: shape of the partial result, if that moves
    moves: relayouts of the partial result, which is added up after the first one
    is_first, is_last, accumulates: as in `ContractionPanel`
    """

    fetches: tuple[_Fetch, ...]
    result_slices: tuple[slice, ...]
    partial_shape: Shape
    moves: tuple[Move, ...]
    is_first: bool
    is_last: bool
    accumulates: bool


class _PanelContraction:
    """A contraction on one device, ready to run. To run it is Collective over the mesh if something moves.

    Parameters
    ----------
    contraction: plan of the contraction
    device: device of this rank
    orders: orders of the axes of the operands in memory, as `axes_in_memory` returns them
    scope: session in which relayouts are prepared; None if nothing moves
    """

    def __init__(
        self, contraction: Contraction, device: int, orders: tuple[Order, ...], scope: Session | None = None
    ) -> None:
        self._contraction, self._device, self._orders, self._scope = contraction, device, orders, scope
        result = contraction.result
        self._shape, self._dtype = result.layout.block_shape(result.shape, device), result.dtype
        self._indices = tuple(operand.indices for operand in contraction.operands)
        self._limit, self._sums_partials = local_limit(contraction.scratch_limit), bool(contraction.summed)
        self._operand_shapes = _operand_shapes(contraction, device)
        keeps_runs = contraction.count() <= KEPT_PANELS
        self._panel_runs = list(map(self._panel_run, contraction.panels())) if keeps_runs else None

    def __call__(self, *blocks: Array) -> Array:
        """Return the block of the result from the blocks of the operands."""
        block_error = _wrong_block_error(self._operand_shapes, blocks)
        if block_error is not None:
            raise block_error
        result, indices, limit = new_block(self._shape, self._dtype), self._contraction.result.indices, self._limit
        factors = [IndexedBlock(block, indices) for block, indices in zip(blocks, self._indices, strict=True)]
        moved_blocks: list[Array | None] = [None] * len(blocks)  # of the last panel, whose memory serves the next one
        partial: Array | None = None
        for panel_run in self._panel_runs or map(self._panel_run, self._contraction.panels()):
            for fetch in panel_run.fetches:
                number, previous_block = fetch.number, moved_blocks[fetch.number]
                # Freed before the next one is allocated.
                if previous_block is None or previous_block.shape != fetch.shape:
                    previous_block = moved_blocks[number] = None
                    factors[number] = IndexedBlock(blocks[number], self._indices[number])
                factor = self._fetched_block(fetch, blocks[number], previous_block)
                moved_blocks[number] = None if fetch.move is None else factor
                factors[number] = IndexedBlock(factor, self._indices[number])
            target = _view(result, panel_run.result_slices)
            if self._contraction.keeps_result:
                accumulates = panel_run.accumulates or not panel_run.is_first
                multiply(factors, IndexedBlock(target, indices), accumulate=accumulates, limit=limit)
                continue
            if panel_run.is_first or partial is None:
                partial = new_block(panel_run.partial_shape, self._dtype)
            multiply(factors, IndexedBlock(partial, indices), accumulate=not panel_run.is_first, limit=limit)
            if panel_run.is_last:
                store_product(self._reduced(panel_run, partial), target, accumulate=panel_run.accumulates)
                partial = None
        return result

    def _fetched_block(self, fetch: _Fetch, block: Array, previous_block: Array | None) -> Array:
        """Return the block of an operand that this device multiplies. *previous_block*: the one of the last panel."""
        if fetch.move is None:
            return _view(block, fetch.slices)
        if not fetch.from_whole_block:
            block = _view(block, fetch.slices)
        elif fetch.order is not None:
            block = block.transpose(fetch.order)
        out = fetch.move(block, previous_block)
        assert out is not None
        return out

    def _reduced(self, panel_run: _PanelRun, partial: Array) -> Array:
        """Return the block of the result for a panel: *partial*, moved and added up over devices."""
        for number, reduce_move in enumerate(panel_run.moves):
            out = reduce_move(partial[None] if self._sums_partials and number == 0 else partial, None)
            assert out is not None
            partial = sum_partials(out) if self._sums_partials and number == 0 else out
        return partial

    def _panel_run(self, panel: ContractionPanel) -> _PanelRun:
        contraction, device, scope = self._contraction, self._device, self._scope
        result, mesh = contraction.result, contraction.mesh
        target = contraction.slice_of(result, panel, device)
        partial_shape: Shape = ()
        moves: tuple[Move, ...] = ()
        if not contraction.keeps_result:
            partial_shape = Layout(contraction.multiplied_axes(result, panel), mesh).block_shape(target.shape, device)
        if panel.is_last and scope is not None:
            moves = tuple(move(scope, plan) for plan in contraction.reduced(panel))
        fetches = tuple(self._fetch(number, panel) for number in panel.fetched)
        return _PanelRun(fetches, target.block, partial_shape, moves, *panel[2:])

    def _fetch(self, number: int, panel: ContractionPanel) -> _Fetch:
        contraction, device, scope = self._contraction, self._device, self._scope
        operand, order = contraction.operands[number], self._orders[number]
        source, plan = contraction.slice_of(operand, panel, device), contraction.relayout_plan(operand, panel)
        if plan is None:
            return _Fetch(number, source.block)
        if only_cuts(plan):
            boxes = (layout.block_box(plan.shape, device) for layout in (source.layout, plan.target))
            slices = tuple(
                slice(span.start + offset, span.start + offset + n)
                for span, (offset, n) in zip(
                    source.block, starmap(_offset_and_length, zip(*boxes, strict=True)), strict=True
                )
            )
            return _Fetch(number, slices)
        assert scope is not None
        shape = plan.target.block_shape(plan.shape, device)
        if order is None:
            return _Fetch(number, source.block, move(scope, plan), shape=shape)
        starts = [panel.slices[index].start if index in panel.slices else 0 for index in operand.indices]

        def slice_box(device: int) -> Box:
            box = operand.layout.block_box(operand.shape, device)
            return tuple(_shifted_span(span, start) for span, start in zip(box, starts, strict=True))

        is_c_order = order == tuple(range(len(order)))
        fetch = move(scope, plan, None if is_c_order else order, slice_box)
        return _Fetch(number, (), fetch, True, None if is_c_order else tuple(np.argsort(order).tolist()), shape)


@lru_cache(maxsize=1024)
def _local_contraction(contraction: Contraction, device: int) -> _PanelContraction:
    """Return a contraction in which nothing moves, ready to run."""
    return _PanelContraction(contraction, device, (None,) * len(contraction.operands))


def _view(array: Array, slices: tuple[slice, ...]) -> Array:
    """Return a slice of *array*, which is an array also if it has no axes."""
    index: Slices = (*slices, ...)
    return array[index]


def _shifted_span(span: Span, start: int) -> Span:
    """Return a span in indices that begin at *start*."""
    if isinstance(span, Runs):
        return span._replace(first=span.first - start)
    return span[0] - start, span[1] - start


def _offset_and_length(outer_span: Span, inner_span: Span) -> tuple[int, int]:
    """Return the offset of *inner_span* in *outer_span*, and its number of elements."""
    if outer_span == inner_span:
        return 0, length_of(outer_span)
    assert not isinstance(outer_span, Runs)
    assert not isinstance(inner_span, Runs)
    return (inner_span[0] - outer_span[0], inner_span[1] - inner_span[0]) if inner_span[0] < inner_span[1] else (0, 0)


# -- matrix products --------------------------------------------------------------------------------------------------


@operation(getattr(np.linalg, "matmul", None))
@refusable
def matmul(a: DTensor | ArrayLike, b: DTensor | ArrayLike) -> Call | DTensor:
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
        return call_traced(np.matmul, (a, b))
    call = product_of_one_device(a, b)
    if call is not None:
        return call
    result = inner_of_same_layout(a, b)
    if result is None:
        result = short_product(a, b)
    return contracting("numpy.matmul", product_subscripts, (a, b)) if result is None else result


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
