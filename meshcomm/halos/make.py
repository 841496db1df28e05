"""`halo`: a tensor's blocks with ghosts, also for a tensor that autograd follows."""

from dataclasses import replace
from typing import cast

import numpy as np

from meshcomm.blocks.make import map_into
from meshcomm.blocks.session import session
from meshcomm.core._arguments import quote
from meshcomm.core._tracing import is_traced, traceable, untraced
from meshcomm.core._types import Array, DType, Slices
from meshcomm.core.arrays.create import from_local
from meshcomm.core.arrays.dtensor import DTensor, TensorLike, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.memory.copies import opaque
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import DTypeError, LayoutError, ShapeError
from meshcomm.halos.axes import AxisRule
from meshcomm.halos.boundaries import Boundary, as_boundaries, as_boundary, as_element
from meshcomm.halos.exchange import HaloPattern
from meshcomm.halos.halo import Halo
from meshcomm.halos.programs import UPDATE
from meshcomm.halos.widths import Width, as_widths
from meshcomm.numpy.gradients import differentiable


@refusable
def halo(tensor: TensorLike, width: object, boundary: object = "none", *, corners: bool = True) -> Halo:
    """Return the blocks of *tensor* with ghosts: copies of the elements around them. Collective over the mesh.

    The block is copied, and the ghosts are filled. A ghost may come from any device: *width* may be larger than a
    block, and larger than the array.

    Parameters
    ----------
    tensor: a DTensor, or a variable that holds one
    width: number of ghosts: one number; for each axis a number or (before, after); or a dict from axes to those
    boundary: boundary of the array: ``"none"``, so that blocks at an edge have no ghosts there; ``"periodic"``,
        ``"nearest"``, ``"reflect"`` or ``"mirror"``, see docs/halo.md; a number; or one of these for each axis, as a
        list or as a dict from axes
    corners: whether to fill ghosts that are outside of the block along several axes. Stencils along the axes do not
        need them

    autograd can follow a halo: for a traced tensor, `Halo.local`, `inner` and `tensor` are traced values, and the
    gradient is that of `Halo.reduce`. Such a halo has no `update`: make another one of the next tensor.

    ``LayoutError`` for a plain array, and for a `Cyclic` axis, whose blocks have neighbours everywhere: relayout the
    tensor first. ``ShapeError`` or ``AxisError`` for a wrong width or boundary. Source: DMDA of PETSc, overlaps of
    dask.array, modes of scipy.ndimage.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.halo(mc.distribute(np.arange(6), rows), 2, "nearest").local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0, 0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 5, 5]]
    """
    source = untraced(unwrapped(tensor))
    if not isinstance(source, DTensor):
        raise LayoutError(f"a halo is of a DTensor, not of {type(source).__name__}: call distribute first")
    widths, boundaries = as_widths(width, source.ndim), as_boundaries(boundary, source.ndim)
    pattern = _pattern_of(source, widths, boundaries, bool(corners))
    if is_traced(tensor):
        return FollowedHalo(cast("DTensor", tensor), pattern)
    return _filled_halo(source, pattern)


def _filled_halo(tensor: DTensor, pattern: HaloPattern) -> Halo:
    """Return the halo of *tensor*. Collective over the mesh."""
    with session("halo", tensor.mesh) as call_session:
        if call_session is None:
            return Halo(pattern, None)
        call_session.open()  # blocks must be in memory that the ranks of a node share
        result, error = Halo(pattern, call_session.device), None
        if tensor.local.shape != result.inner.shape:
            error = ShapeError(f"the block is {tensor.local.shape}, but by its layout {result.inner.shape}")
        else:
            opaque(result.inner)[...] = opaque(tensor.local)
        UPDATE.run(call_session, result._key, (pattern,), (result._blocks,), error)
    result._fill_constant_ghosts()
    return result


class FollowedHalo(Halo):
    """The halo of a tensor that autograd follows: `local`, `inner` and `tensor` are traced values."""

    __slots__ = ()

    def __init__(self, tensor: DTensor, pattern: HaloPattern) -> None:
        super().__init__(pattern, None)
        device = pattern.layout.mesh.rank
        if device is not None:
            local = block_with_ghosts(tensor, pattern)
            assert local is not None
            self._set("inner_slices", pattern.inner_slices(device))
            self._set("local", local)
            inner_index: Slices = (..., *self.inner_slices)
            self._set("inner", local[inner_index])

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def tensor(self) -> DTensor:
        return from_local(self.inner, self.layout, self.shape)

    def _refuse_in_flight(self) -> None:
        raise NotImplementedError(
            "autograd follows this halo: its ghosts are filled, and stay as they are. For other elements, "
            "make another halo of their tensor"
        )


@traceable()
def block_with_ghosts(tensor: DTensor, pattern: HaloPattern) -> Array | None:
    """Return the block of *tensor* with its ghosts. Collective over the mesh."""
    return _filled_halo(tensor, pattern).local


@traceable()
def add_ghosts_to_owners(block: Array, pattern: HaloPattern) -> DTensor:
    """Return the adjoint of `block_with_ghosts`: the tensor of *block*, with ghosts added to owners. Collective."""
    gradient_halo = Halo(_linear_pattern(pattern, block.dtype), pattern.layout.mesh.rank)
    map_into(lambda inner: np.copyto(gradient_halo.local, block), gradient_halo.tensor())
    Halo.reduce(gradient_halo)
    return gradient_halo.tensor().copy()


def _linear_pattern(pattern: HaloPattern, dtype: DType) -> HaloPattern:
    """Return the pattern for a gradient of this *dtype*, which is zero beyond edges with a constant."""
    zero = as_boundary(0)
    rules = [rule._replace(boundary=zero) if rule.boundary.name == "constant" else rule for rule in pattern.rules]
    return replace(pattern, dtype=dtype, rules=tuple(rules))


def _ghosted_vjp(grad: Array, tensor: DTensor, pattern: HaloPattern) -> DTensor:
    return add_ghosts_to_owners(grad, pattern)


def _gathered_vjp(grad: DTensor, block: Array, pattern: HaloPattern) -> Array | None:
    relaid = grad if grad.layout == pattern.layout else relayout(grad, pattern.layout)
    return block_with_ghosts(relaid, _linear_pattern(pattern, untraced(relaid).dtype))


differentiable(block_with_ghosts, _ghosted_vjp)
differentiable(add_ghosts_to_owners, _gathered_vjp)


def _pattern_of(
    tensor: DTensor, widths: tuple[Width, ...], boundaries: tuple[Boundary, ...], corners: bool
) -> HaloPattern:
    rules = []
    for axis, (n, width, boundary) in enumerate(zip(tensor.shape, widths, boundaries, strict=True)):
        cut = tensor.layout.cut(axis, n)
        if not cut.is_consecutive:
            names = " + ".join(tensor.layout.axes[axis])
            raise LayoutError(
                f"axis {axis} is Cyclic: every element of it may have other neighbours. relayout the tensor first, "
                f"for example to {quote(names)} for this axis"
            )
        if boundary.repeats and not n and any(width):
            raise ShapeError(f"boundary {boundary} along axis {axis}, which has no elements to repeat")
        if boundary.name == "constant":
            _check_constant(boundary, tensor.dtype)
        rules.append(AxisRule(cut, width, boundary))
    return HaloPattern(tensor.layout, tensor.shape, tensor.dtype, tuple(rules), corners)


def _check_constant(boundary: Boundary, dtype: DType) -> None:
    """Raise ``DTypeError`` if ghosts of *dtype* cannot have the constant: floats may be rounded, integers may not."""
    reason = ""
    try:
        element = as_element(boundary.value, dtype)
        if dtype.kind in "biu" and element != boundary.value:
            reason = f": it would be {element}"
        elif dtype.kind in "fc" and np.isinf(element) and not np.isinf(np.asarray(boundary.value)):
            reason = ": it is too large"
    except (TypeError, ValueError, OverflowError) as error:
        reason = f": {error}"
    if reason:
        raise DTypeError(f"boundary {boundary} does not fit into dtype {dtype}{reason}")
