"""NumPy's products of two tensors or more: dot, tensordot, vecdot, outer, kron, cross and others like them.

Products with sums are cases of `einsum`, which decides what moves and which layout the result has. Products without
sums, as outer and kron, are elementwise: there :mod:`meshcomm.blocks.rules` decides the same.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import index
from string import ascii_letters
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.align import agree_on_plain, aligned_blocks, relaid
from meshcomm.blocks.make import make, on_device
from meshcomm.blocks.map import copy_into, with_out
from meshcomm.blocks.rules import ADVICE, broadcast_shape, common_layout, is_operand, mesh_of, not_operand
from meshcomm.blocks.tensor_numpy import TensorOrArray, tensor_np
from meshcomm.blocks.views import check_writable
from meshcomm.core._arguments import as_array, counted, index_of, quote
from meshcomm.core._callers import warn
from meshcomm.core._tracing import Value, traceable
from meshcomm.core._types import AnyDict, Array, Casting, DType, Shape
from meshcomm.core.arrays._recipes import Call, completed
from meshcomm.core.arrays.create import from_callback
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.errors import ShapeError
from meshcomm.numpy.contractions.contractions import arguments_of, contracting, matmul
from meshcomm.numpy.contractions.einsum import parse_subscripts, repeated_axes
from meshcomm.numpy.contractions.short_products import short_product
from meshcomm.numpy.elementwise.signatures import decision, implements, operation
from meshcomm.numpy.indexing.diagonals import main_diagonal
from meshcomm.numpy.reductions.reductions import inner_of_same_layout
from meshcomm.numpy.shapes.shaping import normalised_axis

Factor: TypeAlias = DTensor | ArrayLike
Options: TypeAlias = AnyDict  # of a universal function, by NumPy's names
Axes: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""The axes of the first operand that are summed over, and those of the second one."""


def _as_factors(name: str, *operands: object) -> list[TensorOrArray]:
    """Return *operands* as tensors and arrays; ``TypeError`` for an object that is neither."""
    values = [unwrapped(x) for x in operands]
    for x in values:
        if not is_operand(x):
            raise TypeError(not_operand(f"numpy.{name}", x))
    return [x if isinstance(x, DTensor) else as_array(x) for x in values]


# -- sums over pairs of axes ------------------------------------------------------------------------------------------


def axes_of_tensordot(axes: Value) -> Axes:
    """Return the axes that `numpy.tensordot` sums over: *axes* is its argument of this name.

    >>> [list(axes) for axes in axes_of_tensordot(2)], axes_of_tensordot((0, [1]))
    ([[-2, -1], [0, 1]], ([0], [1]))
    """
    try:
        pair: list[Sequence[int]] = list(axes)  # TypeError for a number
    except TypeError:
        count = index_of(axes)  # TypeError if it is no integer
        return range(-count, 0), range(max(count, 0))
    if len(pair) != 2:
        raise ShapeError(f"numpy.tensordot: axes has {counted(len(pair), 'entry')}; it has one for each operand")
    left_axes, right_axes = (list(numbers) if isinstance(numbers, Iterable) else [numbers] for numbers in pair)
    return left_axes, right_axes


def axes_of_inner(left_ndim: int, right_ndim: int) -> Axes:
    """Return the axes that `numpy.inner` sums over: those of operands with this many axes; none for numbers."""
    return ([-1], [-1]) if left_ndim and right_ndim else ([], [])


def axes_of_dot(left_ndim: int, right_ndim: int) -> Axes:
    """Return the axes that `numpy.dot` sums over: those of operands with this many axes; none for numbers."""
    return ([-1], [-2 if right_ndim > 1 else 0]) if left_ndim and right_ndim else ([], [])


def subscripts_of(left_ndim: int, right_ndim: int, axes: Axes) -> str:
    """Return the subscripts of a product, for `einsum`, of operands with this many axes.

    >>> subscripts_of(3, 2, ([-1, 0], [0, 1]))
    'abc,ca->b'
    """
    left, right = list(ascii_letters[:left_ndim]), list(ascii_letters[left_ndim : left_ndim + right_ndim])
    for left_axis, right_axis in zip(*axes, strict=True):
        right[right_axis] = left[left_axis]
    letters = [letter for letter in left + right if not (letter in left and letter in right)]
    return f"{''.join(left)},{''.join(right)}->{''.join(letters)}"


def _summed_product(name: str, operands: Sequence[TensorOrArray], axes: Axes, out: object = None) -> Call | DTensor:
    """Return the product of two operands, summed over pairs of *axes*, or the call that makes it.

    ``ShapeError`` if an axis does not exist, is named twice, or differs in length from its pair.
    """
    left, right = operands
    summed_axes = [[normalised_axis(a, x.ndim) for a in numbers] for x, numbers in zip(operands, axes, strict=True)]
    if len(summed_axes[0]) != len(summed_axes[1]) or any(len(set(numbers)) < len(numbers) for numbers in summed_axes):
        raise ShapeError(
            f"numpy.{name}: axes {quote(summed_axes[0])} of the first operand and {quote(summed_axes[1])} of the "
            "second are no pairs: each names as many axes, each of them once"
        )
    for left_axis, right_axis in zip(*summed_axes, strict=True):
        _check_lengths(f"numpy.{name}", (left.shape, left_axis), (right.shape, right_axis))
    return _einsum(name, subscripts_of(left.ndim, right.ndim, (summed_axes[0], summed_axes[1])), operands, out)


def _einsum(name: str, subscripts: str, operands: Sequence[TensorOrArray], out: object) -> Call | DTensor:
    """Return the `einsum` of *operands*, or the call that makes it; written to *out*, if that is not None."""
    if out is None:
        return contracting(f"numpy.{name}", subscripts, operands)
    terms, _, result = subscripts.partition("->")
    lengths = {
        letter: n
        for term, x in zip(terms.split(","), operands, strict=True)
        for letter, n in zip(term, x.shape, strict=True)
    }
    target = _checked_out(name, out, tuple(lengths[letter] for letter in result), operands)
    call = contracting(f"numpy.{name}", subscripts, operands, layout=target.layout)
    copy_into(f"numpy.{name}", (target,), [completed(call)])
    return target


def _check_lengths(name: str, left: tuple[Shape, int], right: tuple[Shape, int]) -> None:
    (left_shape, i), (right_shape, k) = left, right
    if left_shape[i] != right_shape[k]:
        raise ShapeError(
            f"{name} of shapes {left_shape} and {right_shape}: axis {i % len(left_shape)} of the first has "
            f"{counted(left_shape[i], 'element')} and axis {k % len(right_shape)} of the second {right_shape[k]}; "
            "they must be equal"
        )


def _checked_out(name: str, out: object, shape: Shape, operands: Sequence[TensorOrArray]) -> DTensor:
    """Return *out*, a tensor that is like the result; ``ShapeError`` or ``ValueError`` if it is not, as in NumPy."""
    if not isinstance(out, DTensor):
        raise TypeError(f"numpy.{name}: out= must be a DTensor where an operand is one; {ADVICE}")
    dtype = np.result_type(*(x.dtype for x in operands))
    if out.shape != shape:
        raise ShapeError(f"numpy.{name}: out has shape {out.shape}, but the product has {shape}")
    if out.dtype != dtype:
        raise ValueError(f"numpy.{name}: out has dtype {out.dtype}, but the product has {dtype}; they must be equal")
    check_writable(f"numpy.{name}: out=", out)
    return out


@operation(np.tensordot, getattr(np.linalg, "tensordot", None))
@traceable(2, twin=np.tensordot)
def tensordot(a: Factor, b: Factor, axes: object = 2) -> Call | DTensor:
    """Return the sums of products over pairs of axes, as numpy.tensordot. Collective over the mesh.

    Parameters
    ----------
    a, b: tensors, or one of them a plain array
    axes: number of the last axes of *a* and of the first ones of *b*; or two lists, of axes of *a* and of axes of *b*

    >>> import numpy as np, meshcomm as mc
    >>> t = mc.distribute(np.arange(6).reshape(2, 3), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
    >>> np.tensordot(t, t, axes=([0], [0])).to_numpy().tolist()
    [[9, 12, 15], [12, 17, 22], [15, 22, 29]]
    """
    return _summed_product("tensordot", _as_factors("tensordot", a, b), axes_of_tensordot(axes))


@operation(np.inner)
@traceable(2, twin=np.inner)
def inner(a: Factor, b: Factor) -> Call | DTensor:
    """Return the sums of products over the last axes, as numpy.inner; products with a number. Collective."""
    left, right = _as_factors("inner", a, b)
    if not left.ndim or not right.ndim:
        return tensor_np.multiply(left, right)
    return _summed_product("inner", (left, right), axes_of_inner(left.ndim, right.ndim))


@operation(np.dot)
@traceable(2, twin=np.dot)
def dot(a: Factor, b: Factor, out: object = None) -> Call | DTensor:
    """Return the sums of products over the last axis of *a* and the last but one of *b*. Collective over the mesh.

    As numpy.dot: the product, if an operand is a number; for vectors and matrices the same as ``a @ b``.
    """
    left, right = _as_factors("dot", a, b)
    result = None if out is not None else inner_of_same_layout(left, right)
    if result is None and out is None:
        result = short_product(left, right)
    if result is not None:
        return result
    if left.ndim and right.ndim:
        return _summed_product("dot", (left, right), axes_of_dot(left.ndim, right.ndim), out)
    if out is None:
        return tensor_np.multiply(left, right)
    _checked_out("dot", out, left.shape or right.shape, (left, right))
    return tensor_np.multiply(left, right, out=out)


@operation(np.vdot)
@traceable(2, twin=np.vdot)
def vdot(a: Factor, b: Factor) -> Call | DTensor:
    """Return the sum of all products, of the complex conjugates of *a*, as numpy.vdot. Collective over the mesh.

    Operands of one shape are not flattened; others are, in C order, and may have to move for that.
    """
    left, right = _as_factors("vdot", a, b)
    if left.size != right.size:
        raise ShapeError(
            f"numpy.vdot of shapes {left.shape} and {right.shape}: the first has {counted(left.size, 'element')} and "
            f"the second {right.size}; they must be equal"
        )
    if left.shape != right.shape:
        left, right = np.reshape(left, -1), np.reshape(right, -1)
    result = inner_of_same_layout(left, right) if left.dtype.kind == "f" else None
    if result is not None:
        return result
    all_axes = range(left.ndim)
    return _summed_product("vdot", (_conjugate(left), right), (all_axes, all_axes))


def _conjugate(x: TensorOrArray) -> TensorOrArray:
    return tensor_np.conjugate(x) if x.dtype.kind == "c" else x


@operation(np.linalg.multi_dot)
def multi_dot(arrays: Sequence[Factor], *, out: object = None) -> Call | DTensor:
    """Return the product of matrices in the cheapest order, as numpy.linalg.multi_dot. Collective over the mesh.

    The first and the last may be vectors. ``LinAlgError`` if another one is no matrix.
    """
    factors = _as_factors("linalg.multi_dot", *arrays)
    if len(factors) < 2:
        raise ShapeError(f"numpy.linalg.multi_dot takes two matrices or more, not {len(factors)}")
    if len(factors) == 2:
        return dot(factors[0], factors[1], out)
    for number, x in enumerate(factors):
        is_end = number in (0, len(factors) - 1)
        if x.ndim != 2 and not (is_end and x.ndim == 1):
            raise np.linalg.LinAlgError(
                f"numpy.linalg.multi_dot takes matrices, and vectors as the first and the last one; operand {number} "
                f"has shape {x.shape}"
            )
        if number:
            _check_lengths("numpy.linalg.multi_dot", (factors[number - 1].shape, -1), (x.shape, 0))
    while len(factors) > _MAX_FACTORS:
        factors[:_MAX_FACTORS] = [multi_dot(factors[:_MAX_FACTORS])]
    terms = [ascii_letters[i : i + 2] for i in range(len(factors))]
    terms[0], terms[-1] = terms[0][-factors[0].ndim :], terms[-1][: factors[-1].ndim]
    result = terms[0][:-1] + terms[-1][1:]
    return _einsum("linalg.multi_dot", f"{','.join(terms)}->{result}", factors, out)


_MAX_FACTORS = 24
"""Matrices in one call of `einsum`, which has a letter for each axis."""


@implements(np.linalg.matrix_power)
def matrix_power(a: DTensor, n: int) -> DTensor:
    """Return the power *n* of square matrices, by repeated squares, as numpy.linalg.matrix_power. Collective.

    A negative power is a power of the inverse. ``LinAlgError`` if they are not square, or have no inverse.
    """
    name, tensor = "numpy.linalg.matrix_power", as_tensor("numpy.linalg.matrix_power", a)
    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2]:
        raise np.linalg.LinAlgError(f"{name}: the last two axes must be square, but the shape is {tensor.shape}")
    try:
        power = index(n)
    except TypeError:
        raise TypeError(f"{name}: the exponent must be an integer, not {quote(n)}") from None
    if power < 0:
        tensor, power = tensor_np.linalg.inv(tensor), -power
    if not power:
        return _identity(tensor)
    result = tensor
    for bit in f"{power:b}"[1:]:
        result = matmul(result, result)
        if bit == "1":
            result = matmul(result, tensor)
    return result


def _identity(like: DTensor) -> DTensor:
    """Return identity matrices in the shape, dtype and layout of a tensor."""

    def make_block(slices: tuple[slice, ...]) -> Array:
        rows, columns = (np.arange(like.shape[-1])[axis_slice] for axis_slice in slices[-2:])
        eye = (rows[:, np.newaxis] == columns).astype(like.dtype)
        return np.broadcast_to(eye, [len(range(n)[s]) for n, s in zip(like.shape, slices, strict=True)])

    return from_callback(like.shape, like.dtype, like.layout, make_block)


# -- products without sums --------------------------------------------------------------------------------------------


@implements(np.outer)
@traceable(2, twin=np.outer)
def outer(a: Factor, b: Factor, out: object = None) -> DTensor:
    """Return the products of all elements of *a* with all of *b*, both flattened, as numpy.outer. Collective."""
    rows, columns = (np.reshape(x, -1) for x in _as_factors("outer", a, b))
    out_option = {} if out is None else {"out": out}
    return tensor_np.multiply(rows[:, np.newaxis], columns[np.newaxis], **out_option)


@implements(getattr(np.linalg, "outer", None))
def _outer_of_vectors(x1: Factor, x2: Factor) -> DTensor:
    left, right = _as_factors("linalg.outer", x1, x2)
    if left.ndim != 1 or right.ndim != 1:
        raise ShapeError(f"numpy.linalg.outer takes vectors, not shapes {left.shape} and {right.shape}")
    return outer(left, right)


@implements(np.kron)
@traceable(2, twin=np.kron)
def kron(a: Factor, b: Factor) -> DTensor:
    """Return the Kronecker product, as numpy.kron. Collective over the mesh.

    It is the outer product with the axes of *a* and *b* interleaved, reshaped. Elements move if *b* is sharded.
    """
    left, right = _as_factors("kron", a, b)
    ndim = max(left.ndim, right.ndim)
    left_shape, right_shape = ((1,) * (ndim - x.ndim) + x.shape for x in (left, right))
    product = tensor_np.multiply(_interleaved_axes(left, ndim, 0), _interleaved_axes(right, ndim, 1))
    return tensor_np.reshape(product, tuple(n * m for n, m in zip(left_shape, right_shape, strict=True)))


def _interleaved_axes(x: TensorOrArray, ndim: int, turn: int) -> TensorOrArray:
    """Return *x* with new axes of length 1: of 2 *ndim* axes, every second one, from *turn* on, is an axis of *x*."""
    own_axes = [2 * axis + turn for axis in range(ndim - x.ndim, ndim)]
    return tensor_np.expand_dims(x, tuple(axis for axis in range(2 * ndim) if axis not in own_axes))


@implements(np.cross)
@traceable(2, twin=np.cross)
def cross(  # noqa: PLR0917 - NumPy's
    a: Factor, b: Factor, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> DTensor:
    """Return the cross products of vectors with 2 or 3 components, as numpy.cross. Collective over the mesh.

    The axes of the components are gathered, if they are sharded; the others come together as in a sum.

    Parameters
    ----------
    a, b: tensors, or one of them a plain array
    axisa, axisb: axes of *a* and *b* along which the components are
    axisc: axis of the components in the result; unused if all vectors have 2 components
    axis: value for all three

    >>> import numpy as np, meshcomm as mc
    >>> t = mc.distribute(np.eye(3, dtype=int), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
    >>> np.cross(t, [0, 0, 1]).to_numpy().tolist()
    [[0, -1, 0], [1, 0, 0], [0, 0, 0]]
    """
    name, operands = "numpy.cross", _as_factors("cross", a, b)
    axes = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    factors = _as_factors("cross", *agree_on_plain(name, operands, mesh_of(operands)))
    dtype = _dtype_of_cross(factors, axes)
    left, right = (_components_last(name, x, vector_axis) for x, vector_axis in zip(factors, axes, strict=False))
    shape = (*broadcast_shape(name, [x.shape[:-1] for x in (left, right)]), 3)
    layout = common_layout(shape, [x for x in (left, right) if isinstance(x, DTensor)])
    blocks = aligned_blocks(name, (left, right), shape, layout)
    block = on_device(layout.mesh, lambda _: _cross_products(blocks[0], blocks[1], dtype))
    if 3 in (left.shape[-1], right.shape[-1]):
        return tensor_np.moveaxis(make(block, layout, shape, dtype), -1, axes[-1])
    return make(block, layout.delete(-1), shape[:-1], dtype)


def _dtype_of_cross(factors: Sequence[TensorOrArray], axes: tuple[int, int, int]) -> DType:
    """Return the dtype of cross products; NumPy's errors, and its warning about vectors with 2 components.

    NumPy computes the product of single vectors for that. All have 3 components: for 2 it would warn, with a line of
    meshcomm.
    """
    samples, lengths = [], []
    for x, axis in zip(factors, axes, strict=False):
        vector_axis = axis % x.ndim if x.ndim else 0
        lengths.append(x.shape[vector_axis] if x.ndim else 0)
        components = 3 if lengths[-1] == 2 else lengths[-1]
        samples.append(np.ones([components if number == vector_axis else 1 for number in range(x.ndim)], x.dtype))
    both_2d = lengths == [2, 2]  # the result has no axis of components
    dtype = np.asarray(tensor_np.cross(*samples, *axes[:2], -1 if both_2d else axes[2])).dtype
    if 2 in lengths:
        warn(
            "Arrays of 2-dimensional vectors are deprecated. Use arrays of 3-dimensional vectors instead. (deprecated "
            "in NumPy 2.0)",
            DeprecationWarning,
        )
    return dtype


def _components_last(name: str, x: TensorOrArray, axis: int) -> TensorOrArray:
    result = tensor_np.moveaxis(x, axis, -1)
    return relaid(result, result.layout.replace(-1, ()).axes, name) if isinstance(result, DTensor) else result


def _cross_products(a: Array, b: Array, dtype: DType) -> Array:
    """Return the cross products along the last axes, as numpy.cross, which would warn once more."""
    is_3d = 3 in (a.shape[-1], b.shape[-1])
    out = np.empty((*np.broadcast_shapes(a.shape[:-1], b.shape[:-1]), 3), dtype)

    def product(left_index: int, right_index: int) -> Array | None:
        exist = left_index < a.shape[-1] and right_index < b.shape[-1]
        return np.multiply(a[..., left_index], b[..., right_index], dtype=dtype) if exist else None

    for number in range(3) if is_3d else [2]:
        i, k = (number + 1) % 3, (number + 2) % 3
        plus_term, minus_term = product(i, k), product(k, i)
        if minus_term is None:
            out[..., number] = plus_term
        elif plus_term is None:
            np.negative(minus_term, out=out[..., number])
        else:
            np.subtract(plus_term, minus_term, out=out[..., number])
    return out if is_3d else out[..., 2].copy()


@implements(getattr(np.linalg, "cross", None))
def _cross_of_three(x1: Factor, x2: Factor, *, axis: int = -1) -> DTensor:
    left, right = _as_factors("linalg.cross", x1, x2)
    for x in (left, right):
        if x.shape[normalised_axis(axis, x.ndim)] != 3:
            raise ShapeError(
                f"numpy.linalg.cross takes vectors of 3 components, not shape {x.shape} along axis {axis}"
            )
    return cross(left, right, axis=axis)


# -- universal functions with core axes -------------------------------------------------------------------------------


def _vecdot(x1: TensorOrArray, x2: TensorOrArray) -> Call | DTensor:
    _check_lengths("numpy.vecdot", (x1.shape, -1), (x2.shape, -1))
    return contracting("numpy.vecdot", "...i,...i->...", (_conjugate(x1), x2))


@implements(getattr(np.linalg, "vecdot", None))
def _vecdot_along(x1: Factor, x2: Factor, *, axis: int = -1) -> DTensor:
    return tensor_np.vecdot(x1, x2, axis=axis)


def _matvec(x1: TensorOrArray, x2: TensorOrArray) -> Call | DTensor:
    _check_lengths("numpy.matvec", (x1.shape, -1), (x2.shape, -1))
    return contracting("numpy.matvec", "...ij,...j->...i", (x1, x2))


def _vecmat(x1: TensorOrArray, x2: TensorOrArray) -> Call | DTensor:
    _check_lengths("numpy.vecmat", (x1.shape, -1), (x2.shape, -2))
    return contracting("numpy.vecmat", "...i,...ij->...j", (_conjugate(x1), x2))


_CORE_FUNCTIONS: dict[str, Callable[[TensorOrArray, TensorOrArray], Call | DTensor]] = {
    "matmul": matmul,
    "vecdot": _vecdot,
    "matvec": _matvec,
    "vecmat": _vecmat,
}
_PRODUCTS = {getattr(np, name): function for name, function in _CORE_FUNCTIONS.items() if hasattr(np, name)}
"""For ufuncs of NumPy with core axes: the function for tensors, with the core axes last."""


def is_product(ufunc: np.ufunc) -> bool:
    """Return whether *ufunc* of NumPy is a product that `core_product` makes."""
    return ufunc in _PRODUCTS


def core_product(
    ufunc: np.ufunc, operands: Sequence[object], out: Sequence[DTensor], options: Options
) -> Call | DTensor:
    """Return the matmul, vecdot, matvec or vecmat of tensors, as NumPy's, or the call. Collective over the mesh.

    Parameters
    ----------
    ufunc: one of these functions
    operands: tensors and arrays
    out: sequence of one tensor to write the result to, or empty
    options: NumPy's options: dtype, casting, axes, axis, keepdims

    ``ShapeError`` if shapes do not fit, NumPy's ``TypeError`` for dtypes and options that it does not take.
    """
    name, product = f"numpy.{ufunc.__name__}", _PRODUCTS[ufunc]
    factors: list[TensorOrArray] = [x if isinstance(x, DTensor) else as_array(x) for x in operands]
    if product is matmul and not options and not out:
        return decision(matmul)(factors[0], factors[1])
    dtype = _product_dtype(ufunc, factors, (), options)
    if out:
        _product_dtype(ufunc, factors, out, options)
    factors = [x.astype(dtype, copy=False) if _DTYPE_OPTIONS & options.keys() else x for x in factors]
    axes, keepdims = _core_axes(options), options.get("keepdims", False)
    factors = [_core_axes_last(x, core_axes) for x, core_axes in zip(factors, axes, strict=False)]
    result: DTensor = completed(product(factors[0], factors[1]))
    if keepdims:
        result = tensor_np.expand_dims(result, -1)
    if axes[2] is not None:
        result = tensor_np.moveaxis(result, tuple(range(-len(axes[2]), 0)), axes[2])
    return with_out(name, out or None, result, options.get("casting", "same_kind"))


_DTYPE_OPTIONS = {"dtype", "signature", "sig"}
"""Options that say in which dtype to compute."""


def _product_dtype(
    ufunc: np.ufunc, factors: Sequence[TensorOrArray], out: Sequence[DTensor], options: Options
) -> DType:
    """Return the dtype of a product, or of *out*; NumPy's errors for numbers of axes, dtypes and options."""
    ones = [np.ones((1,) * x.ndim, x.dtype) for x in (*factors, *out)]
    try:
        with np.errstate(all="ignore"):
            return np.asarray(ufunc(*ones, **options)).dtype
    except np.exceptions.AxisError:
        raise
    except ValueError as error:
        name = ufunc.__name__
        raise ShapeError(f"numpy.{name}: {str(error).removeprefix(f'{name}: ')}") from None


def _core_axes(options: Options) -> list[tuple[int, ...] | None]:
    """Return the core axes of both operands and of the result; None for the last axes."""
    if "axis" in options:
        return [(options["axis"],)] * 2 + [(options["axis"],) if options.get("keepdims") else None]
    axes = [entry if isinstance(entry, tuple) else (entry,) for entry in options.get("axes", ())]
    return [*axes, *[None] * (3 - len(axes))]


def _core_axes_last(x: TensorOrArray, core_axes: tuple[int, ...] | None) -> TensorOrArray:
    return x if core_axes is None else tensor_np.moveaxis(x, core_axes, tuple(range(-len(core_axes), 0)))


@operation(np.einsum)
def _einsum_of_numpy(
    *operands: object,
    out: DTensor | None = None,
    optimize: object = False,
    dtype: DTypeLike | None = None,
    order: str = "K",
    casting: Casting = "safe",
    **others: object,
) -> Call | DTensor:
    """Return the Einstein sum of tensors, as numpy.einsum. *optimize* and *order* are ignored: pairs are contracted.

    If nothing is summed or converted, the result is a view of the only tensor.
    """
    if others:
        names = ", ".join(others)
        raise TypeError(f"numpy.einsum takes no {names}=; meshcomm.einsum has layout= and max_scratch_bytes=")
    text, tensors = arguments_of(operands[0], operands[1:])
    if out is dtype is None and len(tensors) == 1 and isinstance(tensors[0], DTensor) and isinstance(text, str):
        (indices,), result_indices = parse_subscripts(text, (tensors[0].shape,))
        if set(indices) == set(result_indices):
            return _view_by_indices(tensors[0], indices, result_indices)
    call = contracting("numpy.einsum", operands[0], operands[1:], dtype=dtype, casting=casting)
    return call if out is None else with_out("numpy.einsum", out, completed(call), casting)


def _view_by_indices(tensor: DTensor, indices: str, result_indices: str) -> DTensor:
    """Return a view of *tensor*, which has *indices* for its axes, with one axis for each of *result_indices*."""
    while (axes := repeated_axes(indices)) is not None:
        tensor = main_diagonal(tensor, axes)
        indices = indices.replace(indices[axes[0]], "", 2) + indices[axes[0]]
    return tensor.transpose([indices.index(letter) for letter in result_indices])
