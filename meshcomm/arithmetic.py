"""Arithmetic on DTensors: NumPy's operators and elementwise functions, reductions, matmul and transpose.

How the operands of an elementwise function meet:

1. Shapes broadcast as NumPy's do; an axis of length 1 that is stretched counts as unsharded.
2. Going through the tensors from left to right, each adds its sharding on the axes of the result that are not sharded
   yet, with the mesh dimensions that are not used yet.
3. Every operand is relaid to that. Nothing moves where it is so already, and replicated operands are only sliced.

So ``[x, unsharded] + [unsharded, y]`` is ``[x, y]``, ``[x, unsharded] + [unsharded, x]`` is ``[x, unsharded]``, and
``x + relayout_like(ones, x)`` moves nothing. With ``out=``, as in ``x += y``, operands meet in the layout of *out*.

Numbers and arrays of rank 0 take part as NumPy's do. Plain arrays count as replicated: all ranks of the mesh agree on
a digest of their bytes, each time, and then each uses its part; `distribute` one that is used often. Ranks outside of
the mesh may call everything here; their results have shape, dtype and layout, and no block.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from meshcomm import _late, guard
from meshcomm.collectives import AllReduce, as_array, exact_copy, is_traced, reduction, untraced
from meshcomm.context import place_in
from meshcomm.dtensor import Axis, DTensor, ones_like, place_text, unwrapped, zeros_like
from meshcomm.errors import LayoutError, MeshError, ShapeError
from meshcomm.exchange import as_bytes
from meshcomm.execute import run_agreed
from meshcomm.groups import Group, Place
from meshcomm.layout import Axes, Layout
from meshcomm.mesh import Mesh
from meshcomm.plan import as_dtype, same_place
from meshcomm.relayout import relayout

Array = NDArray[Any]
Names = tuple[str, ...]

_NUMBERS = (bool, int, float, complex, np.generic)
_ADVICE = "use t.local for the block of this rank (Local), or t.to_numpy() for the global array (Collective)"


# -- operands ---------------------------------------------------------------------------------------------------------


def _is_operand(x: Any) -> bool:
    """Return whether *x* can meet a DTensor: a tensor, a number, an array, or nested lists of numbers."""
    return isinstance(x, (DTensor, np.ndarray, list, tuple, *_NUMBERS))


def _is_plain(x: Any) -> bool:
    """Return whether *x* is a plain array with axes to be divided."""
    return not isinstance(x, (DTensor, *_NUMBERS)) and np.ndim(x) > 0


def _mesh_of(operands: Sequence[Any]) -> Mesh:
    """Return the mesh that all tensors among *operands* are on; ``MeshError`` if there are several."""
    tensors = [x for x in operands if isinstance(x, DTensor)]
    if not tensors:
        raise LayoutError("one of the operands must be a DTensor; NumPy has its own functions for arrays")
    for tensor in tensors[1:]:
        a, b = tensors[0].mesh, tensor.mesh
        if a is not b and (not same_place(a, b) or a.world is not b.world):
            raise MeshError(f"operands must be on one mesh, but are on the {a} and the {b}")
    return tensors[0].mesh


def _agree_on_plain(name: str, operands: Sequence[Any], mesh: Mesh) -> list[Any]:
    """Return *operands*, lists among them as arrays. Collective over the mesh if one of them is a plain array.

    ``CollectiveMismatch`` if that is not the same on every rank.
    """
    if not any(map(_is_plain, operands)):
        return list(operands)
    place = place_in(mesh)
    if place is None:
        return [as_array(x) if _is_plain(x) else x for x in operands]
    guard.begin(name, place.team)
    try:
        arrays, texts, error = list(operands), [], None
        try:
            arrays = [as_array(x) if _is_plain(x) else x for x in operands]
            texts = [_described(x) for x in arrays]
        except Exception as problem:
            error = problem
        guard.agree(place.team, f"{name} of {', '.join(texts)}; a plain array must be the same on every rank", error)
    finally:
        guard.end()
    return arrays


def _described(operand: Any) -> str:
    """Return what ranks must have in common about an operand, as text."""
    if isinstance(operand, DTensor):
        return f"a DTensor of {operand.shape} {operand.dtype} in {operand.layout.sharding_specs}"
    if not isinstance(operand, np.ndarray) or operand.ndim == 0:
        return f"{operand!r}"
    digest = blake2b(as_bytes(np.ascontiguousarray(operand)).data, digest_size=8).hexdigest()
    return f"a plain array of {operand.shape} {operand.dtype} with bytes {digest}"


def _shape_of(operand: Any) -> tuple[int, ...]:
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


# -- how operands meet ------------------------------------------------------------------------------------------------


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
        return _moved(operand, axes)
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


def _elementwise(name: str, function: Callable[..., Any], operands: Sequence[Any], out: tuple[DTensor, ...]) -> Any:
    """Return what an elementwise *function* makes of *operands*, one tensor or a tuple. Collective if one has to move.

    *function* takes blocks, and ``out=`` as NumPy's universal functions do if *out* is given.
    """
    mesh = _mesh_of((*operands, *out))
    operands = _agree_on_plain(name, operands, mesh)
    shape = _broadcast_shape(name, [_shape_of(x) for x in (*operands, *out)])
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
    if place_in(mesh) is not None:
        into = {"out": tuple(target.local for target in targets)} if out else {}
        local = function(*blocks, **into)
        results = [np.asarray(r, order="C") for r in ((local,) if single else local)]
    if out:
        _store(out, targets)
        return out[0] if single else out
    tensors = tuple(DTensor(r, layout, shape, dtype) for r, dtype in zip(results, dtypes, strict=True))
    return tensors[0] if single else tensors


def _store(out: Sequence[DTensor], results: Sequence[DTensor]) -> None:
    """Write *results* into the blocks of *out*. Collective if they are in other layouts."""
    for target, result in zip(out, results, strict=True):
        if result is not target:
            moved = relayout(result, target.layout)
            if target.local is not None:
                assert moved.local is not None
                np.copyto(target.local, moved.local, casting="same_kind")


@_late.provides("array_ufunc")
def array_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a universal function of NumPy makes of tensors. Collective if an operand has to move.

    ``MeshError`` for tensors on several meshes, ``ShapeError`` if shapes do not broadcast, ``CollectiveMismatch`` for
    plain arrays that differ between ranks, ``TypeError`` for what is not done: ``where=``, and methods such as reduce.
    """
    out = kwargs.pop("out", ())
    operands = [unwrapped(x) for x in inputs]
    if any(map(is_traced, (*operands, *out))) or not all(map(_is_operand, operands)):
        return NotImplemented
    name = f"numpy.{ufunc.__name__}"
    if method != "__call__":
        raise TypeError(f"{name}.{method} is not defined for DTensors; for sums use t.sum(), else {_ADVICE}")
    if kwargs.pop("where", True) is not True:
        raise TypeError(f"{name}: where= is not supported for DTensors; use numpy.where on the result")
    if not all(isinstance(target, DTensor) for target in out):
        raise TypeError(f"{name}: out= must be DTensors where an operand is one; {_ADVICE}")
    if ufunc is np.matmul:
        if kwargs:
            raise TypeError(f"{name} of DTensors takes no {', '.join(kwargs)}=")
        product = matmul(*operands)
        if not out:
            return product
        if out[0].shape != product.shape:
            raise ShapeError(f"{name}: out has shape {out[0].shape}, but the product has {product.shape}")
        _store(out, [product])
        return out[0]
    if ufunc.signature is not None:
        raise TypeError(f"{name} is not defined for DTensors: it is not elementwise; {_ADVICE}")
    return _elementwise(name, lambda *blocks, **into: ufunc(*blocks, **into, **kwargs), operands, out)


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
    if any(map(is_traced, operands)):
        return _traced(np.where, operands)
    result: DTensor = _elementwise("numpy.where", np.where, operands, ())
    return result


# -- groups along mesh dimensions -------------------------------------------------------------------------------------


def _group_along(place: Place, mesh: Mesh, names: Names) -> tuple[Group, int]:
    """Return the group of this device along mesh dimensions, in mesh order, and its place in it. Local."""
    devices = next(row for row in mesh.groups_along(names) if place.device in row)
    group = place.team.group((mesh, names), devices[0], tuple(mesh.ranks[device] for device in devices))
    return group, devices.index(place.device)


def _dividing(mesh: Mesh, names: set[str]) -> Names:
    """Return those of *names* that divide something, in the order of the mesh."""
    return tuple(name for name, size in mesh.dims if name in names and size > 1)


class _Partial(NamedTuple):
    """A result that is to be reduced over *names*: how each device computes its part, of what shape and dtype."""

    compute: Callable[[Array], Array]
    names: Names
    op: str
    dtype: np.dtype[Any]
    counted: Callable[[int], bool]  # whether what a device has counts


def _prepared(part: _Partial, place: Place, mesh: Mesh, n: int) -> Callable[[Array], Array]:
    """Return a function from the block of a device to its reduced result of *n* elements. Local to make."""
    group, here = _group_along(place, mesh, part.names)
    members = [mesh.ranks.index(rank) for rank in group.members]
    counted = [i for i, device in enumerate(members) if part.counted(device)]
    compute, reduce = part.compute, reduction(part.op, part.dtype)
    run = AllReduce(group, here, reduce, n, part.dtype.itemsize, counted or None).run
    return lambda block: run(compute(block))


# -- reductions -------------------------------------------------------------------------------------------------------


class _Reduction(NamedTuple):
    """One of NumPy's reductions: as it reduces a block, and as results of blocks are reduced."""

    function: Callable[..., Any]
    op: str


_REDUCTIONS = {
    "sum": _Reduction(np.sum, "sum"),
    "max": _Reduction(np.max, "max"),
    "min": _Reduction(np.min, "min"),
}


def normalised_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return *axis* as axes from 0, ascending; ``ShapeError`` if one is not there or is named twice. Local."""
    if axis is None:
        return tuple(range(ndim))
    try:
        listed = [int(a.__index__()) for a in (axis if isinstance(axis, tuple | list) else (axis,))]
    except (AttributeError, TypeError):
        raise ShapeError(f"axis must be an integer, a tuple of integers, or None, not {axis!r}") from None
    for a in listed:
        if not -ndim <= a < ndim:
            raise ShapeError(f"axis {a} is out of range for a tensor with {ndim} axes")
    axes = tuple(sorted({a % ndim for a in listed}))
    if len(axes) < len(listed):
        raise ShapeError(f"axis {axis} names an axis twice")
    return axes


def _as_tensor(name: str, operand: Any) -> DTensor:
    tensor = unwrapped(operand)
    if not isinstance(tensor, DTensor):
        raise LayoutError(f"{name} is for DTensors, not for {type(operand).__name__}; NumPy has its own for arrays")
    return tensor


def _reduced(name: str, operand: Any, axis: Axis, keepdims: bool, dtype: DTypeLike | None = None) -> DTensor:
    """Return a reduction over *axis*. Collective over the mesh if a reduced axis is sharded, else Local."""
    tensor, (function, op) = _as_tensor(name, operand), _REDUCTIONS[name]
    axes = normalised_axes(axis, tensor.ndim)
    shape = tuple(n for a, n in enumerate(tensor.shape) if a not in axes)
    if name != "sum" and 0 not in shape and 0 in tensor.shape:
        raise ShapeError(f"the {name} over axis {axis} of shape {tensor.shape} has no elements, so there is none")
    options = {} if dtype is None else {"dtype": dtype}
    kind = np.asarray(function(np.ones((1,) * tensor.ndim, tensor.dtype), axis=axes, **options)).dtype
    layout, source, whole = tensor.layout.delete(axes), tensor.layout, tensor.shape
    names = _dividing(tensor.mesh, {n for a in axes for n in source.axes[a]})

    def counted(device: int) -> bool:
        block = source.block_shape(whole, device)
        return all(block[a] > 0 for a in axes)

    def compute(block: Array) -> Array:
        if name != "sum" and any(block.shape[a] == 0 for a in axes):  # nothing here that counts
            return np.zeros([n for a, n in enumerate(block.shape) if a not in axes], kind)
        return np.asarray(function(block, axis=axes, **options), order="C")

    key = ("reduce", name, source, tensor.shape, tensor.dtype, axes, kind)
    result = _run(key, f"{name} over axes {axes}", tensor, layout, shape, _Partial(compute, names, op, kind, counted))
    return _with_axes(result, axes, tensor.ndim) if keepdims else result


def _run(key: Any, text: str, tensor: DTensor, layout: Layout, shape: tuple[int, ...], part: _Partial) -> DTensor:
    """Return what each device makes of its block, reduced as *part* says. Collective over the mesh."""
    place, mesh = place_in(layout.mesh), layout.mesh
    if place is None:
        return DTensor(None, layout, shape, part.dtype)
    assert tensor.local is not None
    if not part.names:
        return DTensor(part.compute(tensor.local), layout, shape, part.dtype)
    n = prod(layout.block_shape(shape, place.device))
    guard.begin(text, place.team)
    try:
        local = run_agreed(
            place,
            key,
            lambda: f"{text} of {tensor.shape} {tensor.dtype} in {tensor.layout.sharding_specs} on {place_text(mesh)}",
            lambda: _prepared(part, place, mesh, n),
            tensor.local,
        )
    finally:
        guard.end()
    return DTensor(local, layout, shape, part.dtype)


def _with_axes(tensor: DTensor, axes: tuple[int, ...], ndim: int) -> DTensor:
    """Return *tensor* with axes of length 1 at *axes* of its new *ndim*, sharing its block. Local."""
    lengths, names = iter(tensor.shape), iter(tensor.layout.axes)
    shape = tuple(1 if a in axes else next(lengths) for a in range(ndim))
    layout = Layout([() if a in axes else next(names) for a in range(ndim)], tensor.mesh)
    local = tensor.local
    if local is not None:
        kept = iter(local.shape)
        local = local.reshape([1 if a in axes else next(kept) for a in range(ndim)])
    return DTensor(local, layout, shape, tensor.dtype)


@_late.provides("sum")
def sum(t: DTensor, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> DTensor:
    """Return the sum over *axis*, one, several or all. Collective over the mesh if one is sharded, else Local.

    Of the dtype that numpy.sum has. The axes that remain keep their sharding, and all devices that hold an element of
    the result hold it to the same last bit. ``ShapeError`` for an axis that is not there.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.ones((3, 2)), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)])))
    ...     return t.sum(axis=0).local.tolist(), float(t.sum())
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([3.0, 3.0], 6.0), ([3.0, 3.0], 6.0)]
    """
    if is_traced(t):
        return _traced(np.sum, (t,), axis=axis, dtype=dtype, keepdims=keepdims)
    return _reduced("sum", t, axis, keepdims, dtype)


@_late.provides("mean")
def mean(t: DTensor, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> DTensor:
    """Return the mean over *axis*, one, several or all. Collective over the mesh if one is sharded, else Local.

    Of the dtype that numpy.mean has, and as it with a warning where there are no elements. Otherwise as `sum`.
    """
    if is_traced(t):
        return _traced(np.mean, (t,), axis=axis, dtype=dtype, keepdims=keepdims)
    tensor = _as_tensor("mean", t)
    kind = np.mean(np.ones(1, tensor.dtype)).dtype if dtype is None else as_dtype(dtype)
    # As in NumPy, float16 is added up in float32.
    total = _reduced("sum", tensor, axis, keepdims, np.float32 if dtype is None and kind == np.float16 else kind)
    count = prod(tensor.shape[a] for a in normalised_axes(axis, tensor.ndim))
    if total.local is None:
        return DTensor(None, total.layout, total.shape, kind)
    return DTensor(np.asarray(total.local / count).astype(kind), total.layout, total.shape, kind)


@_late.provides("max")
def max(t: DTensor, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the maximum over *axis*, one, several or all. Collective over the mesh if one is sharded, else Local.

    NaN where there is one, as numpy.max. ``ShapeError`` where there are no elements, or no such axis.
    """
    if is_traced(t):
        return _traced(np.max, (t,), axis=axis, keepdims=keepdims)
    return _reduced("max", t, axis, keepdims)


@_late.provides("min")
def min(t: DTensor, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the minimum over *axis*, one, several or all. Collective over the mesh if one is sharded, else Local.

    NaN where there is one, as numpy.min. ``ShapeError`` where there are no elements, or no such axis.
    """
    if is_traced(t):
        return _traced(np.min, (t,), axis=axis, keepdims=keepdims)
    return _reduced("min", t, axis, keepdims)


# -- transpose and matmul ---------------------------------------------------------------------------------------------


@_late.provides("transpose")
def transpose(t: DTensor, axes: Sequence[int] | None = None) -> DTensor:
    """Return the tensor with its axes in another order, by default reversed; their sharding goes along. Local.

    ``ShapeError`` unless *axes* has every axis once.

    >>> import meshcomm as mc
    >>> def program():
    ...     t = mc.zeros((2, 3), "i4", mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)])))
    ...     return t.T.layout.sharding_specs, t.T.local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    (['unsharded', 'x'], [[0], [0], [0]])
    """
    if is_traced(t):
        return _traced(np.transpose, (t, axes))
    tensor = _as_tensor("transpose", t)
    order = tuple(reversed(range(tensor.ndim))) if axes is None else tuple(int(a) for a in axes)
    if normalised_axes(order, tensor.ndim) != tuple(range(tensor.ndim)):
        raise ShapeError(f"axes {order} must have every axis of a tensor of shape {tensor.shape} once")
    layout = Layout([tensor.layout.axes[a] for a in order], tensor.mesh)
    local = None if tensor.local is None else exact_copy(tensor.local.transpose(order))
    return DTensor(local, layout, tuple(tensor.shape[a] for a in order), tensor.dtype)


def matmul(a: DTensor | ArrayLike, b: DTensor | ArrayLike) -> DTensor:
    """Return the matrix product of tensors of one or two axes, one of which may be a plain array. Collective.

    In any layouts, over one mesh. Rows are sharded as those of *a*, columns as those of *b*. The axis that is summed
    over stays sharded, and partial products are added up, with the mesh dimensions that rows and columns do not use;
    other operands are relaid. Local if no axis that is summed over is sharded and nothing moves. ``ShapeError`` if the
    shapes do not fit, ``MeshError`` for tensors on several meshes.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     a = mc.distribute(np.arange(4).reshape(2, 2), mc.Layout([mc.UNSHARDED, "x"], mesh))
    ...     return (a @ np.eye(2, dtype=int)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[1])
    [[0, 1], [2, 3]]
    """
    operands = [unwrapped(x) for x in (a, b)]
    if any(map(is_traced, operands)):
        return _traced(np.matmul, operands)
    mesh = _mesh_of(operands)
    operands = _agree_on_plain("numpy.matmul", operands, mesh)
    shapes = [_shape_of(x) for x in operands]
    _check_product(*shapes)
    left, right = (x if isinstance(x, DTensor) else relayout(x, Layout.replicated(mesh, x.ndim)) for x in operands)
    dtype = np.asarray(np.matmul(np.ones((1, 1), left.dtype), np.ones((1, 1), right.dtype))).dtype
    rows, summed, columns = _product_axes(left.layout.axes, right.layout.axes)
    left = _moved(left, (*rows, summed))
    right = _moved(right, (summed, *columns))
    layout, shape = Layout((*rows, *columns), mesh), (*left.shape[:-1], *right.shape[1:])
    local = None
    if left.local is not None and right.local is not None:
        local = np.asarray(np.matmul(left.local, right.local), dtype, order="C")
    names = _dividing(mesh, set(summed))
    key = ("matmul", left.layout, right.layout, left.shape, right.shape, dtype)
    part = _Partial(lambda block: block, names, "sum", dtype, lambda device: True)
    return _run(key, "matmul", DTensor(local, layout, shape, dtype), layout, shape, part)


def _check_product(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for name, shape in (("first", a), ("second", b)):
        if len(shape) not in (1, 2):
            raise ShapeError(f"matmul takes tensors of 1 or 2 axes, but the {name} has shape {shape}")
    if a[-1] != b[0]:
        raise ShapeError(
            f"matmul of shapes {a} and {b}: the last axis of the first has {a[-1]} elements and the first axis of the "
            f"second {b[0]}; they must be equal"
        )


def _product_axes(a: Axes, b: Axes) -> tuple[Axes, Names, Axes]:
    """Return how the rows of a product are sharded, the axis that is summed over, and the columns.

    >>> _product_axes((("x",), ()), ((), ("y",)))
    ((('x',),), (), (('y',),))
    >>> _product_axes(((), ("x",)), (("x",), ()))
    (((),), ('x',), ((),))
    >>> _product_axes((("x",), ("y",)), (("y",), ("x",)))
    ((('x',),), ('y',), ((),))
    """
    rows = a[:-1]
    used = {name for names in rows for name in names}
    columns = tuple(tuple(name for name in names if name not in used) for names in b[1:])
    used.update(name for names in columns for name in names)
    free = (tuple(name for name in names if name not in used) for names in (a[-1], b[0]))
    return rows, next(filter(None, free), ()), columns


def _moved(tensor: DTensor, axes: Axes) -> DTensor:
    return tensor if tensor.layout.axes == axes else relayout(tensor, Layout(axes, tensor.mesh))


def spread(t: DTensor | ArrayLike, axes: tuple[int, ...], shape: tuple[int, ...], layout: Layout) -> DTensor:
    """Return *t*, repeated along new *axes* of a tensor of *shape* in *layout*: the adjoint of `sum`. Collective.

    *t* has the other axes of *shape*. Local if they are sharded as in *layout* already.
    """
    if is_traced(t):
        return _traced(spread, (t, axes, shape, layout))
    narrow = layout.delete(axes)
    if not isinstance(t, DTensor):
        t = relayout(t, narrow)
    if t.layout.axes != narrow.axes or t.mesh is not layout.mesh:
        t = relayout(t, narrow)
    local = t.local
    if local is not None:
        device = layout.mesh.rank
        assert device is not None
        wide = np.expand_dims(local, axes)
        local = exact_copy(np.broadcast_to(wide, layout.block_shape(shape, device)))
    return DTensor(local, layout, shape, t.dtype)


# -- NumPy's functions ------------------------------------------------------------------------------------------------


def _traced(function: Callable[..., Any], operands: Sequence[Any], **options: Any) -> DTensor:
    result: DTensor = _late.call("traced", function, operands, options)
    return result


def _map(function: Callable[[Any], Any]) -> Callable[[Any], DTensor]:
    """Return an elementwise function of one tensor."""
    return lambda t: _elementwise(function.__name__, function, [t], ())


def _dtype_of(x: Any) -> Any:
    held = unwrapped(untraced(x))
    return held.dtype if isinstance(held, DTensor) else x


def _numpy_reduction(function: Callable[..., DTensor], takes_dtype: bool) -> Callable[..., DTensor]:
    """Return a reduction with the arguments of NumPy's."""

    def refuse(out: Any) -> None:
        if out is not None:
            raise TypeError(f"numpy.{function.__name__}: out= is not supported for DTensors")

    def with_dtype(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> DTensor:
        refuse(out)
        return function(a, axis, dtype, bool(keepdims))

    def without_dtype(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> DTensor:
        refuse(out)
        return function(a, axis, bool(keepdims))

    return with_dtype if takes_dtype else without_dtype


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.sum: _numpy_reduction(sum, True),
    np.mean: _numpy_reduction(mean, True),
    np.max: _numpy_reduction(max, False),
    np.amax: _numpy_reduction(max, False),
    np.min: _numpy_reduction(min, False),
    np.amin: _numpy_reduction(min, False),
    np.transpose: transpose,
    np.dot: matmul,
    np.where: where,
    np.real: _map(np.real),
    np.imag: _map(np.imag),
    np.copy: lambda t: t.copy(),
    np.zeros_like: zeros_like,
    np.ones_like: ones_like,
    np.shape: lambda t: t.shape,
    np.ndim: lambda t: t.ndim,
    np.size: lambda t: t.size,
    np.iscomplexobj: lambda t: t.dtype.kind == "c",
    np.result_type: lambda *operands: np.result_type(*map(_dtype_of, operands)),
}


@_late.provides("array_function")
def array_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a function of NumPy makes of tensors; Collective where the function of this module is.

    ``TypeError`` for those that are not defined.
    """
    found = _FUNCTIONS.get(function)
    name = f"numpy.{getattr(function, '__name__', function)}"
    if found is None:
        raise TypeError(f"{name} is not defined for DTensors: {_ADVICE}")
    return found(*args, **kwargs)
