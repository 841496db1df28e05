"""Elementwise functions on blocks; :mod:`meshcomm.blocks.rules` says how their operands are aligned."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain, aligned_block, relaid
from meshcomm.blocks.edges import IntervalExchange, apply_piecewise, interval_exchange_for_axes, unshared_pieces
from meshcomm.blocks.make import map_into
from meshcomm.blocks.rules import (
    ADVICE,
    NUMBERS,
    Operand,
    aligned_axes,
    broadcast_shape,
    common_layout,
    is_plain,
    mesh_of,
    sample,
    shape_of,
)
from meshcomm.blocks.views import check_writable
from meshcomm.core._arguments import as_dtype
from meshcomm.core._types import Array, Casting, DType, Shape
from meshcomm.core.arrays._conditions import may_wait
from meshcomm.core.arrays._recipes import Call, OnBlocks, Recipe, completed, is_in_range, is_large, may_raise, waiting
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.ranks.meshes import location_in
from meshcomm.errors import ShapeError

OfBlocks: TypeAlias = Callable[..., object]
"""A function of NumPy on blocks that takes ``out=`` as universal functions do, and returns one array or several."""


def elementwise(name: str, function: OfBlocks, operands: Sequence[object], out: Sequence[DTensor] = ()) -> DTensor:
    """Return the result of an elementwise function. Collective if an operand has to move.

    Parameters
    ----------
    name: name of the call in messages
    function: function of blocks and numbers
    operands: tensors, numbers, arrays and lists
    out: tensors to write the results to
    """
    return completed(deciding(name, function, operands, out))


def elementwise_results(
    name: str, function: OfBlocks, operands: Sequence[object], out: Sequence[DTensor] = ()
) -> tuple[DTensor, ...]:
    """Return the results of an elementwise function with several results. Arguments are those of `elementwise`."""
    return completed(deciding(name, function, operands, out))


def deciding(
    name: str, function: OfBlocks, operands: Sequence[object], out: Sequence[DTensor] = ()
) -> Call | DTensor | Sequence[DTensor]:
    """Return the call of `elementwise`, not run yet; or its results if the call cannot be kept.

    Collective where it returns results, or an operand is a plain array. Arguments are those of `elementwise`.
    """
    call = _call_if_alike(function, operands, out)
    if call is not None:
        return call
    agreed_operands = agree_on_plain(name, operands, mesh_of((*operands, *out)))
    run = _elementwise_run(name, function, agreed_operands, out)
    if run.single and len(out) < 2 and not any(map(is_plain, operands)):
        return Call(Recipe(run.run_single), tuple(operands), out[0] if out else None)
    results = run.run(agreed_operands, out)
    return results[0] if run.single else results


class _ElementwiseRun(NamedTuple):
    """How calls of an elementwise function run: the layout of its operands, and the specs of its results.

    Parameters
    ----------
    name, function: name and function of the call
    layout, shape: layout and global shape of the result
    dtypes: dtype of each result
    single: True if the function returns no tuple
    edges: for each operand its interval exchange; None if it is relaid, or aligned already
    device: device of this rank; None outside of the mesh
    may_wait: whether the block, the dtypes and the function allow the result to wait
    """

    name: str
    function: OfBlocks
    layout: Layout
    shape: Shape
    dtypes: tuple[DType, ...]
    single: bool
    edges: tuple[IntervalExchange | None, ...]
    device: int | None
    may_wait: bool

    def run_single(self, *operands: Operand, out: tuple[DTensor, ...] = ()) -> DTensor:
        """Return the one result of *operands*. Collective if an operand has to move."""
        return self.run(operands, out)[0]

    def run(self, operands: Sequence[Operand], out: Sequence[DTensor]) -> Sequence[DTensor]:
        """Return the results. Collective if an operand has to move."""
        if self.may_wait and not out and may_wait() and self._can_wait(operands):
            return [self._waiting_result(operands)]
        # All results are computed in the layout of the first one.
        targets = [x if x.layout is self.layout else relaid(x, self.layout.axes, self.name) for x in out]
        blocks = [
            edges.pieces_of_one(x, self.name, self.device)
            if edges is not None and isinstance(x, DTensor)
            else aligned_block(self.name, x, self.shape, self.layout)
            for x, edges in zip(operands, self.edges, strict=True)
        ]
        local: list[Array | None] = [None] * len(self.dtypes)
        if self.device is not None:
            local = self._computed_blocks(blocks, [target._block for target in targets])
        if out:
            copy_into(self.name, out, targets)
            return out
        pairs = zip(local, self.dtypes, strict=True)
        return tuple(DTensor(block, self.layout, self.shape, dtype) for block, dtype in pairs)

    def _can_wait(self, operands: Sequence[Operand]) -> bool:
        """Return whether the operands cannot change until the result is computed."""
        for x, edges in zip(operands, self.edges, strict=True):
            if isinstance(x, NUMBERS):
                if type(x) is int and not is_in_range(x, operands):
                    return False
            elif not (isinstance(x, DTensor) and x._is_alone) and (edges is not None or not self._is_small(x)):
                return False
        return True

    def _is_small(self, x: DTensor | Array) -> bool:
        """Return whether *x* is small compared with the block of the result."""
        return 4 * x.size <= prod(self.layout.block_shape(self.shape, self.device))

    def _waiting_result(self, operands: Sequence[Operand]) -> DTensor:
        """Return the result, which waits. Operands that have to move do so now."""
        values, owners = list[object](), list[DTensor | None]()
        for x, edges in zip(operands, self.edges, strict=True):
            owner: DTensor | None = None
            value: object = x
            if isinstance(x, DTensor) and edges is not None:
                assert self.device is not None
                owner, value = x, edges.lazy_pieces(x, self.name, self.device)
            elif isinstance(x, DTensor) and x._is_alone:
                value = relaid(x, aligned_axes(x.shape, self.shape, self.layout), self.name)
            elif not isinstance(x, NUMBERS):  # the program may write to it later
                value = np.array(aligned_block(self.name, x, self.shape, self.layout))
            values.append(value)
            owners.append(owner)
        return waiting(self.function, values, owners, TensorSpec(self.layout, self.shape, self.dtypes[0]))

    def _computed_blocks(self, blocks: list[object], targets: list[Array]) -> list[Array | None]:
        edges = [x for x in self.edges if x is not None]
        if edges:
            if targets:  # a piece of a target may be written before another piece of it is read
                blocks = [unshared_pieces(block, targets[0]) if isinstance(block, list) else block for block in blocks]
            shape, ends = _block_shape_and_ends(self.layout, self.shape, self.edges, self.device)
            results = targets or [new_block(shape, self.dtypes[0])]
            apply_piecewise(self.function, blocks, results[0], edges[0].axis, ends)
            return [*results]
        if targets:
            self.function(*blocks, out=tuple(targets))
            return [*targets]
        return [np.asarray(result, order="C") for result in _as_tuple(self.function(*blocks))]


@lru_cache(maxsize=1024)
def _block_shape_and_ends(
    layout: Layout, shape: Shape, edges: tuple[IntervalExchange | None, ...], device: int
) -> tuple[Shape, list[int]]:
    """Return the shape of a block, and where the pieces of operands begin and end in it, each end once."""
    ends = {end for x in edges if x is not None for end in x.piece_ends(device)}
    return layout.block_shape(shape, device), sorted(ends)


def _elementwise_run(
    name: str, function: OfBlocks, operands: Sequence[Operand], out: Sequence[DTensor]
) -> _ElementwiseRun:
    """Decide how a call runs, by shapes, dtypes and layouts only: so all ranks decide alike."""
    shape = broadcast_shape(name, [shape_of(x) for x in (*operands, *out)])
    for target in out:
        if target.shape != shape:
            raise ShapeError(f"{name}: out has shape {target.shape}, but the operands broadcast to {shape}")
    out_kwargs: dict[str, object] = {"out": tuple(map(sample, out))} if out else {}
    with np.errstate(all="ignore"):
        samples = function(*map(sample, operands), **out_kwargs)
    dtypes = tuple(as_dtype(np.asarray(x).dtype) for x in _as_tuple(samples))
    layout = out[0].layout if out else common_layout(shape, [x for x in operands if isinstance(x, DTensor)])
    edges: list[IntervalExchange | None] = [None] * len(operands)
    if isinstance(function, np.ufunc) and not isinstance(samples, tuple):
        for i, x in enumerate(operands):
            if isinstance(x, DTensor) and x.shape == shape and x.mesh is layout.mesh and x.layout is not layout:
                edges[i] = interval_exchange_for_axes(x._spec, layout.axes)
        if len({x.axis for x in edges if x is not None}) > 1:
            edges = [None] * len(operands)
    single, device = not isinstance(samples, tuple), layout.mesh.rank
    waits = single and device is not None and isinstance(function, np.ufunc)
    all_dtypes = [*dtypes, *(x.dtype for x in operands if isinstance(x, DTensor | np.ndarray))]
    waits = waits and not may_raise(function, dtypes[0]) and is_large(layout.block_shape(shape, device), all_dtypes)
    return _ElementwiseRun(name, function, layout, shape, dtypes, single, tuple(edges), device, waits)


def _call_if_alike(
    function: OfBlocks, operands: Sequence[object], out: Sequence[DTensor]
) -> Call | Sequence[DTensor] | None:
    """Return the call, or its results, if all tensors have one layout and shape, or no axes; None if not.

    It is the most common case, and for small blocks the overhead of the general path would dominate.
    """
    tensors = [x for x in (*operands, *out) if type(x) is DTensor]
    first_tensor = next((x for x in tensors if x.shape), tensors[0] if tensors else None)
    if first_tensor is None or not first_tensor._has_block:
        return None
    layout, shape, mesh = first_tensor.layout, first_tensor.shape, first_tensor.mesh
    for x in tensors:
        if (x.layout is not layout and (x.shape or x.mesh is not mesh)) or x.shape not in ((), shape):
            return None
    if not all(type(x) is DTensor or isinstance(x, NUMBERS) for x in operands) or any(x.shape != shape for x in out):
        return None
    location_in(mesh)  # raises the error of a closed mesh
    out_kwargs: dict[str, object] = {"out": tuple(map(sample, out))} if out else {}
    with np.errstate(all="ignore"):
        samples = function(*[sample(x) for x in operands], **out_kwargs)  # type: ignore[arg-type]  # tensors and numbers
    if not isinstance(samples, tuple):
        spec = out[0]._spec if out else TensorSpec(layout, shape, as_dtype(np.asarray(samples).dtype))
        recipe = OnBlocks(function, spec, isinstance(function, np.ufunc))
        return Call(recipe, tuple(operands), out[0] if out else None)
    blocks = [x._block if type(x) is DTensor else x for x in operands]
    if out:
        function(*blocks, out=tuple([target._block for target in out]))
        return out
    arrays = [np.asarray(block, order="C") for block in _as_tuple(function(*blocks))]
    return tuple(DTensor(block, layout, shape, as_dtype(block.dtype)) for block in arrays)


def _as_tuple(results: object) -> tuple[ArrayLike, ...]:
    return results if isinstance(results, tuple) else (results,)


def copy_into(name: str, out: Sequence[DTensor], results: Sequence[DTensor], casting: Casting = "same_kind") -> None:
    """Write *results* into the blocks of *out*. Collective if they are in other layouts.

    *name* is the operation, *casting* NumPy's rule for the conversion; NumPy's ``TypeError`` if it forbids it.
    """
    for target, result in zip(out, results, strict=True):
        # Raises NumPy's error if not allowed.
        np.copyto(np.empty(0, target.dtype), np.empty(0, result.dtype), casting=casting)
        if result is not target:
            relaid_result = relaid(result, target.layout.axes, name)
            map_into(lambda block, values: np.copyto(block, values, casting=casting), target, relaid_result)


def with_out(name: str, out: object, result: DTensor, casting: Casting = "same_kind") -> DTensor:
    """Return *result*; if *out* is given, copy *result* into *out* and return *out*.

    Collective if *out* is in another layout.

    *out* is a tensor, or a tuple with one. *name* is the operation, *casting* NumPy's rule for the conversion.
    """
    if out is None:
        return result
    target = unwrapped(out[0] if isinstance(out, tuple) and len(out) == 1 else out)
    if not isinstance(target, DTensor):
        raise TypeError(f"{name}: out= must be a DTensor where an operand is one; {ADVICE}")
    if target.shape != result.shape:
        raise ShapeError(f"{name}: out has shape {target.shape}, but the result has {result.shape}")
    check_writable(f"{name}: out=", target)
    copy_into(name, [target], [result], casting)
    return target
