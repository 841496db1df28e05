"""Elementwise functions of tensors; :mod:`meshcomm.numpy.elementwise.rules` says how their operands come together."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.core._arguments import as_array, as_dtype
from meshcomm.core._tracing import traceable
from meshcomm.core._types import Array, Casting, Shape
from meshcomm.core.arrays.create import plain_text
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.arrays.views import check_writable
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.layout_text import specs_text
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.calls import collective, made_by_all
from meshcomm.core.ranks.meshes import location_in
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.rules import (
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
    text_as_scalar,
)

OfBlocks: TypeAlias = Callable[..., object]
"""A function of NumPy on blocks, which takes ``out=`` as universal functions do; it returns an array, or several."""


def agree_on_plain(name: str, operands: Sequence[object], mesh: Mesh) -> list[Operand]:
    """Return *operands* with lists as arrays. Collective over the mesh if one of them is a plain array.

    ``CollectiveMismatch`` if a plain array is not the same on every rank.
    """
    if not any(map(is_plain, operands)):
        return list(operands)  # type: ignore[arg-type]  # tensors and numbers

    def call(arrays: list[Operand]) -> str:
        return f"{name} of {', '.join(map(_described, arrays))}; a plain array must be the same on every rank"

    def make() -> list[Operand]:
        return [as_array(x) if is_plain(x) else x for x in operands]  # type: ignore[misc]

    return made_by_all(name, mesh, call, make)


def replicated(x: ArrayLike, mesh: Mesh) -> DTensor:
    """Return an array or a number, the same on all ranks, as a tensor that shares its memory: to be read only."""
    array = np.asarray(x)
    local = None if location_in(mesh) is None else array
    return DTensor(local, Layout.replicated(mesh, array.ndim), array.shape, as_dtype(array.dtype))


def tensors_of(name: str, operands: Sequence[object]) -> list[DTensor]:
    """Return tensors, arrays and numbers as tensors on the mesh of those that are. Collective if one is a plain array.

    *name* is the operation.
    """
    held = [unwrapped(x) for x in operands]
    mesh = mesh_of(held)
    return [x if isinstance(x, DTensor) else replicated(x, mesh) for x in agree_on_plain(name, held, mesh)]


def _described(operand: Operand) -> str:
    """Return what the ranks compare about an operand."""
    if isinstance(operand, DTensor):
        return f"a DTensor of {operand.shape} {operand.dtype} in {specs_text(operand.layout.sharding_specs)}"
    if not isinstance(operand, np.ndarray) or operand.ndim == 0:
        return f"{operand!r}"
    return plain_text(operand)


def aligned_blocks(name: str, operands: Sequence[Operand], shape: Shape, layout: Layout) -> list[Any]:
    """Return what a device needs of *operands* for a result of *shape* in *layout*: numbers, and blocks.

    *name* is the operation. Collective if a tensor is in another layout.
    """
    found = [_aligned(name, x, shape, layout) for x in operands]
    return [x.local if isinstance(x, DTensor) else x for x in found]


def _aligned(name: str, operand: Operand, shape: Shape, layout: Layout) -> Operand | None:
    """Return what a result of *shape* in *layout* needs of *operand*: a number, a tensor or a block of an array.

    *name* is the operation. Collective if a tensor is in another layout.
    """
    if isinstance(operand, DTensor):
        if operand.shape == shape and operand.layout is layout:
            return operand
        return relaid(operand, aligned_axes(operand.shape, shape, layout), name)
    if isinstance(operand, NUMBERS) or operand.ndim == 0:
        return operand
    device = layout.mesh.rank
    if device is None:
        return None
    axes = aligned_axes(operand.shape, shape, layout)
    return cut_out(operand, Layout(axes, layout.mesh).block_box(operand.shape, device))


def elementwise(
    name: str, function: OfBlocks, operands: Sequence[object], out: Sequence[DTensor] = ()
) -> DTensor | Sequence[DTensor]:
    """Return the results of an elementwise function, one tensor or several. Collective if an operand has to move.

    Parameters
    ----------
    name: names the call in messages
    function: takes blocks and numbers
    operands: tensors, numbers, arrays and lists
    out: tensors to write the results to
    """
    if not out:
        found = _alike(function, operands)
        if found is not None:
            return found
    mesh = mesh_of((*operands, *out))
    known = agree_on_plain(name, operands, mesh)
    shape = broadcast_shape(name, [shape_of(x) for x in (*known, *out)])
    for target in out:
        if target.shape != shape:
            raise ShapeError(f"{name}: out has shape {target.shape}, but the operands broadcast to {shape}")
    into: dict[str, object] = {"out": tuple(map(sample, out))} if out else {}
    with np.errstate(all="ignore"):
        made = function(*map(sample, known), **into)
    single = not isinstance(made, tuple)
    dtypes = [as_dtype(np.asarray(each).dtype) for each in _several(made)]
    layout = out[0].layout if out else common_layout(shape, [x for x in known if isinstance(x, DTensor)])
    targets = [
        target if target.layout is layout else relaid(target, layout.axes, name) for target in out
    ]  # all are computed in the layout of the first one
    blocks = aligned_blocks(name, known, shape, layout)
    local: list[Array | None] = [None] * len(dtypes)
    if location_in(mesh) is not None:
        into = {"out": tuple(target.local for target in targets)} if out else {}
        results = _several(function(*blocks, **into))
        local = local if out else [np.asarray(each, order="C") for each in results]
    if out:
        store(name, out, targets)
        return out[0] if single else out
    tensors = tuple(DTensor(block, layout, shape, dtype) for block, dtype in zip(local, dtypes, strict=True))
    return tensors[0] if single else tensors


def _alike(function: OfBlocks, operands: Sequence[object]) -> DTensor | Sequence[DTensor] | None:
    """Return the results if all operands are tensors of one layout and shape, or numbers; None if not.

    It is the most common case, and for small blocks the way of all others takes most of the time.
    """
    first: DTensor | None = None
    blocks: list[object] = []
    for x in operands:
        if type(x) is DTensor:
            if first is None:
                first = x
            elif x.layout is not first.layout or x.shape != first.shape:
                return None
            blocks.append(x.local)
        elif isinstance(x, NUMBERS):
            blocks.append(x)
        else:
            return None
    if first is None or first.local is None:
        return None
    location_in(first.mesh)  # a mesh that is closed raises its error
    results = function(*blocks)
    made = [np.asarray(each, order="C") for each in _several(results)]
    tensors = tuple(DTensor(block, first.layout, first.shape, as_dtype(block.dtype)) for block in made)
    return tensors if isinstance(results, tuple) else tensors[0]


def _several(made: object) -> tuple[ArrayLike, ...]:
    return made if isinstance(made, tuple) else (made,)


def store(name: str, out: Sequence[DTensor], results: Sequence[DTensor], casting: Casting = "same_kind") -> None:
    """Write *results* into the blocks of *out*. Collective if they are in other layouts.

    *name* is the operation, *casting* NumPy's rule for the conversion: its ``TypeError`` if that does not allow it.
    """
    for target, result in zip(out, results, strict=True):
        np.copyto(np.empty(0, target.dtype), np.empty(0, result.dtype), casting=casting)  # or NumPy's error
        if result is not target:
            moved = relaid(result, target.layout.axes, name)
            if target.local is not None:
                assert moved.local is not None
                np.copyto(target.local, moved.local, casting=casting)


def written(name: str, out: object, result: DTensor, casting: Casting = "same_kind") -> DTensor:
    """Return *result*, or *out* with it in it, if there is an *out*. Collective if that is in another layout.

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
    store(name, [target], [result], casting)
    return target


@traceable(3, twin=np.where)
def where(condition: DTensor | ArrayLike, x: DTensor | ArrayLike, y: DTensor | ArrayLike) -> DTensor:
    """Return *x* where *condition* is true and *y* elsewhere, as numpy.where. Collective if an operand has to move.

    One of the operands must be a tensor. The rules of :mod:`meshcomm.numpy.elementwise.rules` give the layout of the
    result.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.where(t > 1, t, 0).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0, 0], [2, 3]]
    """
    operands = [text_as_scalar(unwrapped(operand)) for operand in (condition, x, y)]
    result = elementwise("numpy.where", np.where, operands)
    assert isinstance(result, DTensor)
    return result


def relaid(tensor: DTensor, axes: Axes, operation: str, mesh: Mesh | None = None) -> DTensor:
    """Return *tensor* with its axes sharded as *axes* say; itself if they are. Collective if it has to move.

    Parameters
    ----------
    tensor: in any layout
    axes: in canonical form
    operation: what needs it: the ranks compare that as well
    mesh: of the result, by default that of *tensor*
    """
    target = tensor.mesh if mesh is None else mesh
    same = target is tensor.mesh or (target == tensor.mesh and target.world is tensor.mesh.world)
    if tensor.layout.axes == axes and same:
        return tensor
    with collective(operation, tensor.mesh, target):
        return relayout(tensor, Layout(axes, target))
