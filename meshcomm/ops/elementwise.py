"""Elementwise functions of tensors, and how their operands meet."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from meshcomm._arguments import as_array, as_dtype
from meshcomm._tracing import traceable
from meshcomm._types import Names
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.relayout import relayout
from meshcomm.errors import LayoutError, MeshError, ShapeError
from meshcomm.layouts.layout import Axes, Layout
from meshcomm.layouts.mesh import Mesh
from meshcomm.layouts.refinement import same_grid
from meshcomm.memory.blocks import as_bytes
from meshcomm.ranks.agreement import agree
from meshcomm.ranks.calls import collective
from meshcomm.ranks.meshes import location_in

_NUMBERS = (bool, int, float, complex, np.generic)


ADVICE = "use t.local for the block of this rank (Local), or t.to_numpy() for the global array (Collective)"


def is_operand(x: Any) -> bool:
    """Return whether *x* can meet a DTensor: a tensor, a number, an array, or nested lists of numbers."""
    return isinstance(x, (DTensor, np.ndarray, list, tuple, *_NUMBERS))


def _is_plain(x: Any) -> bool:
    """Return whether *x* is a plain array with axes to be divided."""
    return not isinstance(x, (DTensor, *_NUMBERS)) and np.ndim(x) > 0


def mesh_of(operands: Sequence[Any]) -> Mesh:
    """Return the mesh that all tensors among *operands* are on; ``MeshError`` if there are several."""
    tensors = [x for x in operands if isinstance(x, DTensor)]
    if not tensors:
        raise LayoutError("one of the operands must be a DTensor; NumPy has its own functions for arrays")
    for tensor in tensors[1:]:
        a, b = tensors[0].mesh, tensor.mesh
        if a is not b and (not same_grid(a, b) or a.world is not b.world):
            raise MeshError(f"operands must be on one mesh, but are on the {a} and the {b}")
    return tensors[0].mesh


def agree_on_plain(name: str, operands: Sequence[Any], mesh: Mesh) -> list[Any]:
    """Return *operands*, lists among them as arrays. Collective over the mesh if one of them is a plain array.

    ``CollectiveMismatch`` if that is not the same on every rank.
    """
    if not any(map(_is_plain, operands)):
        return list(operands)
    with collective(name, mesh) as here:
        arrays, texts, error = list(operands), [], None
        try:
            arrays = [as_array(x) if _is_plain(x) else x for x in operands]
            texts = [_described(x) for x in arrays] if here is not None else []
        except Exception as problem:
            if here is None:
                raise
            error = problem
        if here is not None:
            call = f"{name} of {', '.join(texts)}; a plain array must be the same on every rank"
            agree(here.team, call, error)
    return arrays


def _described(operand: Any) -> str:
    """Return what ranks must have in common about an operand, as text."""
    if isinstance(operand, DTensor):
        return f"a DTensor of {operand.shape} {operand.dtype} in {operand.layout.sharding_specs}"
    if not isinstance(operand, np.ndarray) or operand.ndim == 0:
        return f"{operand!r}"
    digest = blake2b(as_bytes(np.ascontiguousarray(operand)).data, digest_size=8).hexdigest()
    return f"a plain array of {operand.shape} {operand.dtype} with bytes {digest}"


def shape_of(operand: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = () if isinstance(operand, _NUMBERS) else operand.shape
    return shape


def _broadcast_shape(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    distinct = set(filter(None, shapes))
    if len(distinct) < 2:  # the most common case, and NumPy takes long for it
        return next(iter(distinct), ())
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = ", ".join(map(str, shapes))
        raise ShapeError(
            f"{name}: operands of shapes {text} do not broadcast: from the last axis on, lengths must be equal or 1"
        ) from None


def meeting_layout(shape: tuple[int, ...], tensors: Sequence[DTensor]) -> Layout:
    """Return the layout in which *tensors* meet for a result of *shape*, by the rule of this module. Local."""
    mesh, used = tensors[0].mesh, set[str]()
    if all(t.shape == shape and t.layout is tensors[0].layout for t in tensors):
        return tensors[0].layout
    axes: list[Names] = [()] * len(shape)
    for tensor in tensors:
        skipped = len(shape) - tensor.ndim
        for axis, names in enumerate(tensor.layout.axes, skipped):
            if not axes[axis] and tensor.shape[axis - skipped] == shape[axis]:
                axes[axis] = tuple(name for name in names if name not in used)
                used.update(axes[axis])
    found = tuple(axes)
    for tensor in tensors:
        if tensor.layout.axes == found and tensor.mesh is mesh:
            return tensor.layout
    return Layout(found, mesh)


def _aligned(operand: Any, shape: tuple[int, ...], layout: Layout) -> Any:
    """Return *operand*, a tensor or a plain array, as it takes part in a result of *shape* in *layout*.

    A tensor, which is relaid if it is elsewhere, or the block of an array.
    """
    if isinstance(operand, _NUMBERS) or (operand.ndim == 0 and not isinstance(operand, DTensor)):
        return operand
    if isinstance(operand, DTensor) and operand.shape == shape and operand.layout is layout:
        return operand
    skipped = len(shape) - operand.ndim
    axes = tuple(
        names if operand.shape[i] == shape[i + skipped] else () for i, names in enumerate(layout.axes[skipped:])
    )
    if isinstance(operand, DTensor):
        return relaid(operand, axes)
    device = layout.mesh.rank
    return None if device is None else operand[Layout(axes, layout.mesh).block_slices(operand.shape, device)]


def _block(operand: Any) -> Any:
    return operand.local if isinstance(operand, DTensor) else operand


def _sample(operand: Any) -> Any:
    """Return a small stand-in for *operand*: what NumPy makes of it tells the dtype of the result, and errors."""
    if isinstance(operand, _NUMBERS):
        return operand
    if operand.ndim == 0:
        return np.ones((), operand.dtype) if isinstance(operand, DTensor) else operand
    return np.empty((0,) * operand.ndim, operand.dtype)


def elementwise(name: str, function: Callable[..., Any], operands: Sequence[Any], out: tuple[DTensor, ...]) -> Any:
    """Return what an elementwise *function* makes of *operands*, one tensor or a tuple. Collective if one has to move.

    *function* takes blocks, and ``out=`` as NumPy's universal functions do if *out* is given.
    """
    mesh = mesh_of((*operands, *out))
    operands = agree_on_plain(name, operands, mesh)
    shape = _broadcast_shape(name, [shape_of(x) for x in (*operands, *out)])
    for target in out:
        if target.shape != shape:
            raise ShapeError(f"{name}: out has shape {target.shape}, but the operands broadcast to {shape}")
    into = {"out": tuple(map(_sample, out))} if out else {}
    with np.errstate(all="ignore"):
        made = function(*map(_sample, operands), **into)
    single = not isinstance(made, tuple)
    dtypes = [as_dtype(np.asarray(m).dtype) for m in ((made,) if single else made)]
    layout = out[0].layout if out else meeting_layout(shape, [x for x in operands if isinstance(x, DTensor)])
    targets = [_aligned(target, shape, layout) for target in out]  # all outputs are computed in the first one's layout
    blocks = [_block(_aligned(x, shape, layout)) for x in operands]
    results: list[Any] = [None] * len(dtypes)
    if location_in(mesh) is not None:
        into = {"out": tuple(target.local for target in targets)} if out else {}
        local = function(*blocks, **into)
        results = [np.asarray(r, order="C") for r in ((local,) if single else local)]
    if out:
        store(out, targets)
        return out[0] if single else out
    tensors = tuple(DTensor(r, layout, shape, dtype) for r, dtype in zip(results, dtypes, strict=True))
    return tensors[0] if single else tensors


def store(out: Sequence[DTensor], results: Sequence[DTensor]) -> None:
    """Write *results* into the blocks of *out*. Collective if they are in other layouts."""
    for target, result in zip(out, results, strict=True):
        if result is not target:
            moved = relayout(result, target.layout)
            if target.local is not None:
                assert moved.local is not None
                np.copyto(target.local, moved.local, casting="same_kind")


@traceable(3, twin=np.where)
def where(condition: Any, x: Any, y: Any) -> DTensor:
    """Return *x* where *condition* is true, and *y* elsewhere, as numpy.where. Collective if an operand has to move.

    The operands, of which one must be a tensor, meet by the rule of this module.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.where(t > 1, t, 0).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0, 0], [2, 3]]
    """
    operands = [unwrapped(operand) for operand in (condition, x, y)]
    result: DTensor = elementwise("numpy.where", np.where, operands, ())
    return result


def relaid(tensor: DTensor, axes: Axes) -> DTensor:
    return tensor if tensor.layout.axes == axes else relayout(tensor, Layout(axes, tensor.mesh))
