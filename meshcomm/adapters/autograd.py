"""Support of autograd for DTensors, and for the operations that move data.

`meshcomm.adapters.on_import` imports this module when the program has imported autograd.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from autograd import numpy as anp
from autograd import tracer
from autograd.core import primitive_vjps
from autograd.extend import VSpace, defvjp, defvjp_argnums, primitive, vspace
from autograd.numpy.numpy_boxes import ArrayBox

from meshcomm.core import _hooks
from meshcomm.core._tracing import Value, untraced
from meshcomm.core._types import Axis, Groups, Shape
from meshcomm.core.arrays import collectives
from meshcomm.core.arrays.create import full, of_block, zeros
from meshcomm.core.arrays.dtensor import DTensor, is_dtensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.numpy import gradients
from meshcomm.numpy.contractions.contractions import arguments_of
from meshcomm.numpy.contractions.products import Axes, axes_of_dot, axes_of_inner, axes_of_tensordot, subscripts_of
from meshcomm.numpy.gradients import count_over, in_layout_of, sum_vjp, whole
from meshcomm.numpy.indexing.index_tuples import along_axis_index, along_axis_indices, flat, index_along_axis
from meshcomm.numpy.reductions.reductions import spread
from meshcomm.numpy.reductions.reductions import sum as sum_over

if TYPE_CHECKING:
    from mpi4py import MPI

    from meshcomm.core.layouts.layout import Layout
    from meshcomm.core.layouts.layout_text import Spec
    from meshcomm.core.layouts.mesh import Mesh

VJP: TypeAlias = Callable[[Value], Value]
"""A function of the gradient in a result that returns the gradients in the arguments."""

Maker: TypeAlias = Callable[..., VJP]
"""A function that makes a `VJP`: autograd calls it with the result and the arguments of an operation."""


class DTensorBox(ArrayBox):
    """A DTensor that autograd follows; it has the attributes of arrays, a layout and a mesh."""

    __slots__ = ()

    @property
    def layout(self) -> "Layout":
        """The layout."""
        return self._value.layout

    @property
    def mesh(self) -> "Mesh":
        """The mesh of the layout."""
        return self.layout.mesh

    def relayout(self, layout: "Layout | Sequence[Spec]", name: str | None = None, **options: Value) -> Value:
        """Return this tensor in another layout, as `meshcomm.relayout` does. Collective over the meshes of both."""
        return relayout(self, layout, name, **options)


class DTensorSpace(VSpace):
    """The DTensors of one shape, dtype and layout."""

    def __init__(self, value: DTensor) -> None:
        self.shape, self.dtype, self.layout = value.shape, value.dtype, value.layout
        self.ndim, self.iscomplex = value.ndim, value.dtype.kind == "c"
        self.size = value.size * (2 if self.iscomplex else 1)

    def zeros(self) -> DTensor:
        return zeros(self.shape, self.dtype, self.layout)

    def ones(self) -> DTensor:
        return full(self.shape, 1 + 1j if self.iscomplex else 1, self.dtype, self.layout)

    def _mut_add(self, x: object, y: Value) -> Value:
        return x + y  # not in place: the program may hold a value with the block of x

    def _inner_prod(self, x: Value, y: object) -> Value:
        return np.real(sum_over(np.conj(x) * y))

    def _covector(self, x: Value) -> Value:
        return np.conj(x) if self.iscomplex else x


DTensorBox.register(DTensor)
DTensorSpace.register(DTensor)


class _ThreadLocalStack(tracer.TraceStack):
    """The depth of nested traces, separate for each thread.

    autograd numbers traces by one counter, which the ranks of a simulated world would share: an inner trace could get
    a smaller number than the outer one, and second derivatives would be wrong.
    """

    def __init__(self, start: int) -> None:
        self._start, self._local = start, threading.local()

    @property
    def top(self) -> int:
        """The number of the innermost trace."""
        return getattr(self._local, "top", self._start)

    @contextmanager
    def new_trace(self) -> Iterator[int]:
        """Return a context with a new innermost trace."""
        self._local.top = self.top + 1
        try:
            yield self._local.top
        finally:
            self._local.top -= 1


if type(tracer.trace_stack) is tracer.TraceStack:
    tracer.trace_stack = _ThreadLocalStack(tracer.trace_stack.top)


# -- operations that move data ----------------------------------------------------------------------------------------

_OPERATIONS: tuple[Callable[..., object], ...] = (
    relayout,
    spread,
    whole,
    of_block,
    gradients.block_of,
    gradients.indexing_vjp,
    collectives.all_to_all,
    collectives.all_gather,
    collectives.all_reduce,
    collectives.reduce_scatter,
    collectives.broadcast,
    gradients.broadcast_vjp,
    collectives.collective_permute,
)
_PRIMITIVES = {operation: primitive(operation) for operation in _OPERATIONS}


@_hooks.provides("traced")
def traced(function: Callable[..., object], operands: Sequence[object], options: Mapping[str, object]) -> Value:
    """Return the result of *function*, one of ours or of NumPy, for *operands*; autograd traces one of them.

    *options* are the other arguments, by name.
    """
    if function in gradients.DIFFERENTIABLE and function not in _PRIMITIVES:
        _PRIMITIVES[function] = _traced_operation(function, gradients.DIFFERENTIABLE[function])
    traced_function = _PRIMITIVES.get(function) or tracer.trace_primitives_map[function]
    return traced_function(*operands, **options)


def _traced_operation(operation: Callable[..., object], vjp: Callable[..., object]) -> Callable[..., object]:
    """Return an operation of one tensor as a primitive of autograd, with the gradient *vjp*."""
    differentiable: Callable[..., object] = primitive(operation)
    defvjp(differentiable, lambda ans, x, *other_args: lambda g: vjp(g, x, *other_args), argnums=(0,))
    return differentiable


def _check_sum(op: str) -> None:
    if op != "sum":
        raise NotImplementedError(f"there is a gradient for op 'sum' only, not for {op!r}")


def _all_reduce_vjp(ans: object, x: object, groups: Groups | None, op: str, comm: "MPI.Intracomm | None") -> VJP:
    _check_sum(op)
    return lambda g: gradients.all_reduce_vjp(g, groups, comm)


def _reduce_scatter_vjp(ans: object, x: object, *options: Value) -> VJP:
    groups, dimension, op, comm = options
    _check_sum(op)
    return lambda g: gradients.reduce_scatter_vjp(g, groups, dimension, comm)


defvjp(_PRIMITIVES[relayout], lambda ans, x, *_, **__: lambda g: in_layout_of(g, x), None, None)
defvjp(_PRIMITIVES[whole], lambda ans, x: lambda g: relayout(g, x.layout))
defvjp(_PRIMITIVES[of_block], lambda ans, *_: lambda g: gradients.block_of(in_layout_of(g, ans)), None, None)
defvjp(_PRIMITIVES[gradients.block_of], lambda ans, x: lambda g: of_block(g, x.layout, x.shape))
defvjp(_PRIMITIVES[gradients.indexing_vjp], lambda ans, x, key, *_: lambda g: in_layout_of(g[key], x), argnums=(0,))
defvjp(_PRIMITIVES[spread], lambda ans, x, axes, *_: lambda g: in_layout_of(sum_over(g, axes), x), None, None, None)
defvjp(_PRIMITIVES[collectives.all_to_all], lambda ans, x, *call: lambda g: gradients.all_to_all_vjp(g, *call))
defvjp(_PRIMITIVES[collectives.all_gather], lambda ans, x, *call: lambda g: gradients.all_gather_vjp(g, *call))
defvjp(_PRIMITIVES[collectives.all_reduce], _all_reduce_vjp)
defvjp(_PRIMITIVES[collectives.reduce_scatter], _reduce_scatter_vjp)
defvjp(_PRIMITIVES[collectives.broadcast], lambda ans, x, *options: lambda g: gradients.broadcast_vjp(g, *options))
defvjp(_PRIMITIVES[gradients.broadcast_vjp], lambda ans, x, *options: lambda g: collectives.broadcast(g, *options))
defvjp(
    _PRIMITIVES[collectives.collective_permute],
    lambda ans, x, *options: lambda g: gradients.collective_permute_vjp(g, *options),
)


# -- NumPy's functions ------------------------------------------------------------------------------------------------


def _for_dtensors(function: Callable[..., object], vjpmaker: Maker) -> None:
    """Let *vjpmaker* make the gradients of *function* if the result is a DTensor; for arrays autograd makes them."""
    wrapper = tracer.trace_primitives_map.get(function, function)
    array_vjpmaker = primitive_vjps.get(wrapper)

    def choose(argnums: Sequence[int], ans: object, args: Sequence[object], kwargs: Mapping[str, object]) -> VJP:
        maker: Maker | None = vjpmaker if is_dtensor(ans) else array_vjpmaker
        if maker is None:
            raise NotImplementedError(f"autograd has no gradient for {function.__name__} of arrays")
        return maker(argnums, ans, args, kwargs)

    defvjp_argnums(wrapper, choose)


def _relayout_gradients(function: Callable[..., object]) -> None:
    """Relay out autograd's own gradients of *function* to the layouts of the arguments."""
    array_vjpmaker = primitive_vjps[tracer.trace_primitives_map[function]]

    def vjpmaker(argnums: Sequence[int], ans: object, args: Sequence[object], kwargs: Mapping[str, object]) -> VJP:
        vjps = array_vjpmaker(argnums, ans, args, kwargs)
        return lambda g: tuple(in_layout_of(grad, args[n]) for n, grad in zip(argnums, vjps(g), strict=True))

    _for_dtensors(function, vjpmaker)


def _maker_of_each(*vjps: Maker) -> Maker:
    """Return a maker of the gradients in all arguments from a maker for each of them."""

    def vjpmaker(argnums: Sequence[int], ans: object, args: Sequence[object], kwargs: Mapping[str, object]) -> VJP:
        pullbacks = [vjps[n](ans, *args, **kwargs) for n in argnums]
        return lambda g: tuple(vjp(g) for vjp in pullbacks)

    return vjpmaker


def _vjp_of_sum(
    ans: object, x: Value, axis: Axis = None, *other_args: object, keepdims: bool = False, **other_kwargs: object
) -> VJP:
    keeps_dims = bool(other_args[2]) if len(other_args) > 2 else keepdims  # after dtype and out
    return lambda g: sum_vjp(g, x, axis, keeps_dims)


def _vjp_of_mean(
    ans: object, x: Value, axis: Axis = None, *other_args: object, keepdims: bool = False, **other_kwargs: object
) -> VJP:
    vjp = _vjp_of_sum(ans, x, axis, *other_args, keepdims=keepdims)
    return lambda g: vjp(g) / count_over(x, axis)


def _vjp_of_extreme(ans: Value, x: Value, axis: Axis = None, out: object = None, keepdims: bool = False) -> VJP:
    def vjp(g: Value) -> Value:
        is_extreme = anp.equal(x, sum_vjp(ans, x, axis, keepdims))
        return sum_vjp(g, x, axis, keepdims) * (is_extreme / sum_over(is_extreme, axis, keepdims=True))

    return vjp


def _vjp_of_where(condition: object, target: Value, is_x: bool) -> VJP:
    def vjp(g: object) -> Value:
        masked_grad = anp.where(condition, g, 0.0) if is_x else anp.where(condition, 0.0, g)
        return in_layout_of(_summed_to(masked_grad, np.shape(target)), target)

    return vjp


def _vjps_of_einsum(argnums: Sequence[int], ans: object, args: Sequence[object], kwargs: Mapping[str, object]) -> VJP:
    """Return the VJP of an Einstein sum. Operands are the arguments from 1 on, or with axis lists 0, 2, ..."""
    has_axis_lists = not isinstance(args[0], str)
    subscripts, operands = arguments_of(args[0], args[1:])
    numbers = [n // 2 if has_axis_lists else n - 1 for n in argnums]
    return lambda g: tuple(gradients.einsum_vjp(g, subscripts, operands, number) for number in numbers)


def _summed_to(grad: Value, shape: Shape) -> Value:
    """Return a gradient summed over the axes along which an argument of *shape* was repeated."""
    added_ndim = len(grad.shape) - len(shape)
    if added_ndim:
        grad = sum_over(grad, tuple(range(added_ndim)))
    repeated_axes = tuple(axis for axis, n in enumerate(shape) if n == 1 != grad.shape[axis])
    return sum_over(grad, repeated_axes, keepdims=True) if repeated_axes else grad


def _vjp_of_index(ans: object, x: Value, index: object) -> VJP:
    return lambda g: in_layout_of(gradients.indexing_vjp(g, index, x.shape, x.layout), x)


def _vjp_of_take(
    ans: object, a: Value, indices: object, axis: int | None = None, *other_args: Value, mode: str = "raise"
) -> VJP:
    mode = other_args[1] if len(other_args) > 1 else mode  # after out
    return _vjp_of_index(ans, a, index_along_axis("numpy.take", a, indices, axis, mode))


def _vjp_of_take_along_axis(ans: object, arr: Value, indices: object, axis: int | None = -1) -> VJP:
    name = "numpy.take_along_axis"
    positions, number = along_axis_indices(name, arr, indices, axis)
    return _vjp_of_index(
        ans, arr, flat(name, arr, positions) if number is None else along_axis_index(arr, positions, number)
    )


def _maker_of_product(axes_of: Callable[..., Axes]) -> Maker:
    """Return a maker of the gradients of a product of two operands, summed over the axes that *axes_of* returns.

    *axes_of* is called with the number of axes of both operands, and the other arguments of the product.
    """

    def vjpmaker(argnums: Sequence[int], ans: object, args: Sequence[Value], kwargs: Mapping[str, Value]) -> VJP:
        left_ndim, right_ndim = (np.ndim(untraced(x)) for x in args[:2])
        subscripts = subscripts_of(left_ndim, right_ndim, axes_of(left_ndim, right_ndim, *args[2:], **kwargs))
        return lambda g: tuple(gradients.einsum_vjp(g, subscripts, args[:2], number) for number in argnums)

    return vjpmaker


def _vjp_of_left(ans: object, a: object, b: object) -> VJP:
    return lambda g: gradients.matmul_vjp_of_left(g, a, b)


def _vjp_of_right(ans: object, a: object, b: object) -> VJP:
    return lambda g: gradients.matmul_vjp_of_right(g, a, b)


for _numpy_function, _primitive in list(tracer.trace_primitives_map.items()):
    if _primitive in primitive_vjps and isinstance(_numpy_function, np.ufunc) and _numpy_function.signature is None:
        _relayout_gradients(_numpy_function)
_SHAPES = (np.reshape, np.ravel, np.squeeze, np.expand_dims, np.moveaxis, np.swapaxes, np.roll)
for _numpy_function in (np.transpose, np.real, np.imag, np.outer, np.kron, np.cross, np.trace, *_SHAPES):
    _relayout_gradients(_numpy_function)
_for_dtensors(np.sum, _maker_of_each(_vjp_of_sum))
_for_dtensors(np.mean, _maker_of_each(_vjp_of_mean))
for _numpy_function in {np.max, np.amax, np.min, np.amin}:
    _for_dtensors(_numpy_function, _maker_of_each(_vjp_of_extreme))
_for_dtensors(ArrayBox.__getitem__, _maker_of_each(_vjp_of_index))
_for_dtensors(np.take, _maker_of_each(_vjp_of_take))
_for_dtensors(np.take_along_axis, _maker_of_each(_vjp_of_take_along_axis))
_for_dtensors(np.einsum, _vjps_of_einsum)
_for_dtensors(np.matmul, _maker_of_each(_vjp_of_left, _vjp_of_right))
_for_dtensors(np.dot, _maker_of_product(axes_of_dot))
_for_dtensors(np.inner, _maker_of_product(axes_of_inner))
_for_dtensors(np.tensordot, _maker_of_product(lambda left, right, axes=2: axes_of_tensordot(axes)))
_for_dtensors(
    np.where,
    _maker_of_each(
        lambda ans, condition, x, y: lambda g: vspace(condition).zeros(),
        lambda ans, condition, x, y: _vjp_of_where(condition, x, is_x=True),
        lambda ans, condition, x, y: _vjp_of_where(condition, y, is_x=False),
    ),
)
