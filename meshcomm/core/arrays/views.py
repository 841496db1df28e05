"""How a tensor shares memory with another one: what NumPy gives as a view is a view, or refuses to be written to.

A tensor that owns its block has None as its `_view`. Others have a `View`. It knows the strides that NumPy's global
array would have, in elements: NumPy's array is C-ordered, a transpose permutes its strides, a slice multiplies them
by its steps. So all ranks find alike whether NumPy would return a view or a copy. The strides of a block do not tell
this: an axis of which a rank has one element, or none, fits every shape.

Where elements had to move, a tensor is a copy of what NumPy gives as a view. A write to it would be lost for the
tensor that it was taken from. So it is an error while that tensor is still there; after that, the copy is a tensor
like others.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias
from weakref import ref

import numpy as np

from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.regroup import groups_of
from meshcomm.core.layouts.slicing import Items
from meshcomm.core.memory.copies import contiguous, opaque

Strides: TypeAlias = tuple[int, ...]
"""How many elements of memory lie between neighbours along each axis of a global array."""

READ_ONLY = "assignment destination is read-only"
IS_COPY = (
    "the elements had to move, so this is a copy, and a write would be lost: write to the tensor that it was taken "
    "from, or to a copy() of this one"
)


class View(NamedTuple):
    """How a tensor shares memory.

    Parameters
    ----------
    root: the tensor that owns the memory; None: the tensor itself, as it is a copy of what NumPy gives as a view, or
        as its memory is no other tensor's
    strides: those of NumPy's global array
    writeable: whether NumPy lets programs write to it
    origins: the tensors of which NumPy would change elements, too, though they have other memory
    source: the tensor from which elements were copied, and the index there, if the copy is a slice
    """

    root: DTensor | None
    strides: Strides
    writeable: bool = True
    origins: "tuple[ref[DTensor], ...]" = ()
    source: "tuple[ref[DTensor], Items] | None" = None


def view_of(
    tensor: DTensor,
    local: Array | None,
    layout: Layout,
    shape: Shape,
    strides: Strides,
    *,
    dtype: DType | None = None,
    writeable: bool = True,
) -> DTensor:
    """Return the tensor of a block that shares memory with that of *tensor*.

    Parameters
    ----------
    local: the block, a view of that of *tensor*
    layout, shape, strides, dtype: of the result; the dtype is that of *tensor* by default
    writeable: whether NumPy lets programs write to it; so it does only if it is so for *tensor*, too
    """
    root, origins, allowed = _shared(tensor)
    kind, writeable = tensor.dtype if dtype is None else dtype, writeable and allowed
    return DTensor(_marked(local, writeable), layout, shape, kind, View(root, strides, writeable, origins))


def moved_from(
    tensor: DTensor, made: DTensor, strides: Strides, items: Items | None = None, *, writeable: bool = True
) -> DTensor:
    """Return *made*, a copy of what NumPy gives as a view of *tensor*: it refuses writes while *tensor* is there.

    Parameters
    ----------
    strides: those of NumPy's view
    items: the index of *tensor* that the copy is a slice of, if it is one
    writeable: as in `view_of`
    """
    root, origins, allowed = _shared(tensor)
    writeable = writeable and allowed
    local = None if made.local is None else contiguous(made.local)  # so that it can be reshaped as NumPy's array can
    view = View(None, strides, writeable, (*origins, ref(root)), None if items is None else (ref(tensor), items))
    return DTensor(_marked(local, writeable), made.layout, made.shape, made.dtype, view)


def _shared(tensor: DTensor) -> "tuple[DTensor, tuple[ref[DTensor], ...], bool]":
    """Return the root of a view of *tensor*, its origins, and whether it may be written to."""
    view = tensor._view
    if view is None:
        return tensor, (), True
    return tensor if view.root is None else view.root, view.origins, view.writeable


def _marked(local: Array | None, writeable: bool) -> Array | None:
    """Return a block that NumPy does not write to, unless it is *writeable*."""
    if local is None or writeable or not local.flags.writeable:
        return local
    local = local.view()
    local.flags.writeable = False
    return local


def within(local: Array | None, layout: Layout, shape: Shape, dtype: DType, around: Shape) -> DTensor:
    """Return a tensor whose blocks are parts of larger ones, which no tensor owns: those of a shape *around* it."""
    return DTensor(local, layout, shape, dtype, View(None, c_strides(around)))


# -- writes -----------------------------------------------------------------------------------------------------------


def refusal(tensor: DTensor) -> str | None:
    """Return why *tensor* must not be written to, or None: the same on all ranks."""
    view = tensor._view
    if view is None:
        return None
    if not view.writeable:
        return READ_ONLY
    return IS_COPY if any(origin() is not None for origin in view.origins) else None


def check_writable(name: str, tensor: DTensor) -> None:
    """Raise ``ValueError`` on all ranks if *tensor* must not be written to. *name* is the operation."""
    if tensor._view is not None:
        why = refusal(tensor)
        if why is not None:
            raise ValueError(f"{name}: {why}")


def taken_from(tensor: DTensor) -> tuple[DTensor, Items] | None:
    """Return the tensor, if it is still there, from which a slice was copied because it moved; and the index."""
    view = tensor._view
    if view is None or view.source is None or not view.writeable:
        return None
    tensor_of, items = view.source
    held = tensor_of()
    return None if held is None else (held, items)


def at_once(out: DTensor | None) -> Array | None:
    """Return the block of *out* if an exchange can write to it: it is in one piece. Else see `filled`."""
    return None if out is None or out.local is None or not out.local.flags.c_contiguous else out.local


def filled(out: DTensor, block: Array | None) -> DTensor:
    """Return *out* with the elements of *block*, which may be its own block."""
    if block is not None and block is not out.local:
        np.copyto(opaque(out.local), opaque(block))
    return out


# -- strides ----------------------------------------------------------------------------------------------------------


def strides_of(tensor: DTensor) -> Strides:
    """Return the strides that NumPy's global array would have."""
    return c_strides(tensor.shape) if tensor._view is None else tensor._view.strides


@lru_cache(maxsize=1024)
def c_strides(shape: Shape) -> Strides:
    """Return the strides of a C-ordered array.

    >>> c_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def alike_strides(shape: Shape, strides: Strides) -> Strides:
    """Return the strides of NumPy's imaginary part of real numbers, a new array: in Fortran's order if they are.

    >>> alike_strides((2, 3, 4), (1, 2, 6)), alike_strides((2, 3, 4), (1, 200, 10))
    ((1, 2, 6), (12, 4, 1))
    """
    is_fortran = is_in_c_order(shape[::-1], strides[::-1]) and not is_in_c_order(shape, strides)
    return c_strides(shape[::-1])[::-1] if is_fortran else c_strides(shape)


@lru_cache(maxsize=1024)
def sliced_strides(strides: Strides, items: Items) -> Strides:
    """Return the strides of the slice that *items* take.

    >>> from meshcomm.core.layouts.slicing import Stretch
    >>> sliced_strides((6, 1), (None, 3, Stretch(5, 3, -2)))
    (0, -2)
    """
    found, axis = [], 0
    for item in items:
        if item is None:
            found.append(0)
            continue
        if not isinstance(item, int):
            found.append(strides[axis] * item.step)
        axis += 1
    return tuple(found)


def is_in_c_order(shape: Shape, strides: Strides) -> bool:
    """Return whether an array has all its elements in C order, without gaps.

    >>> is_in_c_order((2, 1, 3), (3, 99, 1)), is_in_c_order((2, 3), (1, 2))
    (True, False)
    """
    found = zip(shape, strides, c_strides(shape), strict=True)
    return 0 in shape or all(n == 1 or stride == wanted for n, stride, wanted in found)


@lru_cache(maxsize=1024)
def reshaped_strides(shape: Shape, strides: Strides, new: Shape) -> Strides | None:
    """Return the strides of an array in a *new* shape; None if NumPy would have to copy it.

    >>> reshaped_strides((4, 6), (12, 2), (2, 2, 3, 2)), reshaped_strides((6, 4), (1, 6), (24,))
    ((24, 12, 4, 2), None)
    """
    if is_in_c_order(shape, strides):
        return c_strides(new)
    long = [axis for axis, n in enumerate(shape) if n != 1]
    lengths, steps = [shape[axis] for axis in long], [strides[axis] for axis in long]
    found: list[int] = []
    for group in groups_of(tuple(lengths), new):
        its = list(zip(lengths[group.source], steps[group.source], strict=True))
        if any(step != inner * n for (_, step), (n, inner) in pairwise(its)):
            return None
        last = its[-1][1] if its else 0
        found += [last * step for step in c_strides(new[group.target])]
    return tuple(found)


def memory_order(tensor: DTensor) -> tuple[int, ...] | None:
    """Return which axis of its memory each axis of *tensor* is, if all of its memory is only transposed; else None.

    >>> import meshcomm as mc
    >>> t = mc.zeros((2, 3, 4), layout=mc.Layout.replicated(mc.create_mesh([("x", 1)]), 3))
    >>> memory_order(t), memory_order(t.transpose(2, 0, 1)), memory_order(t[:, ::2])
    (None, (2, 0, 1), None)
    """
    view = tensor._view
    if view is None or view.root is None or view.root.dtype != tensor.dtype:
        return None
    by_stride = sorted(range(tensor.ndim), key=lambda axis: -view.strides[axis])
    shape = tuple(tensor.shape[axis] for axis in by_stride)
    order = tuple(by_stride.index(axis) for axis in range(tensor.ndim))
    in_order = is_in_c_order(shape, tuple(view.strides[axis] for axis in by_stride))
    return order if in_order and order != tuple(range(tensor.ndim)) and 0 not in shape else None


def in_memory_order(tensor: DTensor) -> tuple[Array | None, tuple[int, ...] | None]:
    """Return the block of *tensor*, with axes as they are in memory, and the `memory_order` if it has one."""
    order = memory_order(tensor)
    if order is None or tensor.local is None:
        return tensor.local, order
    return tensor.local.transpose(np.argsort(order)), order
