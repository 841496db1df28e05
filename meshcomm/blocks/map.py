"""A function on blocks, element by element; :mod:`meshcomm.blocks.rules` says how its operands come together."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain, aligned_blocks, relaid
from meshcomm.blocks.rules import ADVICE, NUMBERS, broadcast_shape, common_layout, mesh_of, sample, shape_of
from meshcomm.core._arguments import as_dtype
from meshcomm.core._types import Array, Casting
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.views import check_writable
from meshcomm.core.ranks.meshes import location_in
from meshcomm.errors import ShapeError

OfBlocks: TypeAlias = Callable[..., object]
"""A function of NumPy on blocks, which takes ``out=`` as universal functions do; it returns an array, or several."""


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
