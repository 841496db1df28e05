"""Gradients: the vector-Jacobian product of every operation that moves data.

Each function here is the adjoint Aᵀ of a linear operation A: ``<A x, y> == <x, Aᵀ y>``. There are two views.

- DTensors are global arrays: an element counts once, however many replicas there are, and nothing is ever scaled.
  Gather and slice are each other's adjoint, and the gradient of a relayout is a relayout back.
- The collectives on plain arrays sum over ranks: every rank's array counts. `all_gather` and `reduce_scatter` are each
  other's adjoint, `all_reduce` is its own, and that of `broadcast` is the sum at the root.

With `autograd <https://github.com/HIPS/autograd>`_ installed, ``autograd.grad`` goes through these operations and
through arithmetic on DTensors by itself, to any order. ``import autograd`` and ``import meshcomm`` may come in either
order: meshcomm does not import autograd, it waits for a program to do so.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.session import session
from meshcomm.core._arguments import normalised_axes
from meshcomm.core._tracing import Value, call_traced, is_traced, traceable, untraced
from meshcomm.core._types import Array, Axis, Groups, Pairs, Shape
from meshcomm.core.arrays.collectives import all_gather, all_reduce, all_to_all, collective_permute, reduce_scatter
from meshcomm.core.arrays.create import zeros
from meshcomm.core.arrays.dtensor import DTensor, fetch_layout
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.core.ranks.meshes import world_of
from meshcomm.errors import GroupError
from meshcomm.numpy.contractions.contractions import einsum, product_subscripts
from meshcomm.numpy.contractions.einsum import LETTERS, parse_subscripts
from meshcomm.numpy.indexing.index_arrays import has_arrays
from meshcomm.numpy.indexing.indexing import setitem, update
from meshcomm.numpy.reductions.reductions import spread
from meshcomm.numpy.reductions.reductions import sum as sum_over

if TYPE_CHECKING:
    from mpi4py import MPI


@refusable
def relayout_vjp(grad: DTensor, tensor: DTensor) -> DTensor:
    """Return the gradient of ``relayout(tensor, layout)``: *grad* in the layout of *tensor*. Collective over the mesh.

    Source: the gradient of Relayout in TensorFlow's DTensor.

    >>> import meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    ...     return relayout_vjp(mc.ones((2, 2), "f8", columns), mc.zeros((2, 2), "f8", rows)).layout == rows
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [True, True]
    """
    return _relaid_back("relayout_vjp", grad, tensor)


@refusable
def relayout_like_vjp(grad: DTensor, tensor: DTensor) -> DTensor:
    """Return the gradient of ``relayout_like(tensor, layout_tensor)`` in *tensor*. Collective over the mesh.

    It is *grad* in the layout of *tensor*. There is no gradient in *layout_tensor*: its values do not matter.

    >>> import meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    ...     grad, tensor = mc.ones((2, 2), "f8", columns), mc.zeros((2, 2), "f8", rows)
    ...     return relayout_like_vjp(grad, tensor).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[1.0, 1.0]], [[1.0, 1.0]]]
    """
    return _relaid_back("relayout_like_vjp", grad, tensor)


def _relaid_back(operation: str, grad: DTensor, tensor: DTensor) -> DTensor:
    """Return *grad* in the layout of *tensor*, in a call that differs from a relayout of the program."""
    with session(operation, _layout_on(tensor, grad).mesh):
        gradient: DTensor = in_layout_of(grad, tensor)
    return gradient


@refusable
def sum_vjp(grad: DTensor, tensor: DTensor, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the gradient of ``tensor.sum(axis, keepdims=keepdims)``. Collective over the mesh.

    It is *grad* repeated along the axes, in the layout of *tensor*.

    Parameters
    ----------
    grad: gradient with respect to the sum
    tensor: operand of the sum
    axis, keepdims: arguments of the sum

    >>> import meshcomm as mc
    >>> t = mc.zeros((2, 3), "f8", mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
    >>> sum_vjp(mc.ones_like(t.sum(axis=1)), t, axis=1).to_numpy().tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    shape, layout = tensor.shape, _layout_on(tensor, grad)
    axes = normalised_axes(axis, len(shape))
    return in_layout_of(spread(sum_over(grad, axes) if keepdims else grad, axes, shape, layout), tensor)


@refusable
def matmul_vjp(grad: DTensor, a: DTensor, b: DTensor) -> tuple[DTensor, DTensor]:
    """Return the gradients of ``a @ b`` in *a* and in *b*, in their layouts. Collective over the mesh.

    >>> import numpy as np, meshcomm as mc
    >>> rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)]))
    >>> a, b = (mc.distribute(np.array(values), rows) for values in ([[1.0, 2.0]], [[3.0], [4.0]]))
    >>> [gradient.to_numpy().tolist() for gradient in matmul_vjp(mc.ones_like(a @ b), a, b)]
    [[[3.0, 4.0]], [[1.0], [2.0]]]
    """
    return matmul_vjp_of_left(grad, a, b), matmul_vjp_of_right(grad, a, b)


@refusable
def matmul_vjp_of_left(grad: object, a: Value, b: Value) -> Value:
    """Return the gradient of ``a @ b`` in *a*, in its layout. Collective over the mesh.

    >>> import numpy as np, meshcomm as mc
    >>> rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)]))
    >>> a, b = (mc.distribute(np.array(values), rows) for values in ([[1.0, 2.0]], [[3.0], [4.0]]))
    >>> matmul_vjp_of_left(mc.ones_like(a @ b), a, b).to_numpy().tolist()
    [[3.0, 4.0]]
    """
    return einsum_vjp(grad, product_subscripts(a.shape, b.shape), (a, b), 0)


@refusable
def matmul_vjp_of_right(grad: Value, a: Value, b: Value) -> Value:
    """Return the gradient of ``a @ b`` in *b*, in its layout. Collective over the mesh.

    >>> import numpy as np, meshcomm as mc
    >>> rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)]))
    >>> a, b = (mc.distribute(np.array(values), rows) for values in ([[1.0, 2.0]], [[3.0], [4.0]]))
    >>> matmul_vjp_of_right(mc.ones_like(a @ b), a, b).to_numpy().tolist()
    [[1.0], [2.0]]
    """
    return einsum_vjp(grad, product_subscripts(a.shape, b.shape), (a, b), 1)


@refusable
def einsum_vjp(grad: object, subscripts: str, operands: Sequence[Value], number: int) -> Value:
    """Return the gradient of ``einsum(subscripts, *operands)`` in operand *number*. Collective over the mesh.

    It is in the layout of that operand, and is an Einstein sum itself: of *grad* and the other operands, of ones for
    each index that only this operand has, and of a unit matrix for each index that it has twice.

    Parameters
    ----------
    grad: gradient with respect to the result
    subscripts, operands: arguments of the sum
    number: number of the operand, counted from 0

    >>> import numpy as np, meshcomm as mc
    >>> t = mc.distribute(np.arange(4.0).reshape(2, 2), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
    >>> einsum_vjp(np.float64(1), "ii", (t,), 0).to_numpy().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    expression = parse_subscripts(subscripts, tuple(np.shape(untraced(x)) for x in operands))
    letters = dict(zip(dict.fromkeys("".join(expression.operands)), LETTERS, strict=False))
    free_letters = iter(LETTERS[len(letters) :])
    terms = ["".join(letters[i] for i in term) for term in expression.operands]
    other_factors = [(term, x) for n, (term, x) in enumerate(zip(terms, operands, strict=True)) if n != number]
    factors = [("".join(letters[i] for i in expression.result), grad), *other_factors]
    result, covered_letters, shape = "", {i for term, _ in factors for i in term}, np.shape(untraced(operands[number]))
    for index, n in zip(terms[number], shape, strict=True):
        if index in result:
            new_letter = next(free_letters)
            factors.append((index + new_letter, np.eye(n, dtype=bool)))
            result += new_letter
            continue
        if index not in covered_letters:
            factors.append((index, np.ones(n, dtype=bool)))
        result += index
    vjp_subscripts = f"{','.join(term for term, _ in factors)}->{result}"
    return in_layout_of(_einsum_on_mesh(vjp_subscripts, [x for _, x in factors], operands), operands[number])


def _einsum_on_mesh(subscripts: str, factors: Sequence[Value], operands: Sequence[Value]) -> object:
    """Return an Einstein sum of *factors* as a tensor. If all factors are arrays, it is on the mesh of an operand."""
    if any(fetch_layout(x) is not None for x in factors):
        return einsum(subscripts, *factors)
    layout = next(filter(None, map(fetch_layout, operands)))
    grad = relayout(factors[0], Layout.replicated(layout.mesh, np.ndim(untraced(factors[0]))))
    return einsum(subscripts, grad, *factors[1:])


def _layout_on(x: Value, *others: Value) -> Layout:
    """Return the layout of *x*; for a plain array the replicated layout on the mesh of one of *others*."""
    layout = fetch_layout(x)
    if layout is None:
        reference = next(filter(None, map(fetch_layout, others)))
        layout = Layout.replicated(reference.mesh, np.ndim(untraced(x)))
    return layout


def in_layout_of(grad: Value, x: Value) -> Value:
    """Return *grad*, a gradient in *x*, in the layout of *x*. Collective over the mesh if it has to move.

    It is a plain array if *x* is one, and real if *x* is. A gradient in the layout and kind of *x* is returned itself.
    """
    if np.iscomplexobj(untraced(x)) != np.iscomplexobj(untraced(grad)):
        grad = _real(grad) if np.iscomplexobj(untraced(grad)) else grad + 0j
    source, target = fetch_layout(grad), fetch_layout(x)
    if target is None:
        return grad if source is None else whole(grad)
    return grad if source == target and source.mesh is target.mesh else relayout(grad, target)


def _real(x: Value) -> Value:
    return call_traced(np.real, (x,)) if is_traced(x) else np.real(x)


@traceable()
def whole(tensor: DTensor) -> Array | None:
    """Return the global array on every rank of the mesh. Collective over the mesh.

    As `DTensor.to_numpy`, but autograd can follow it.
    """
    return tensor.to_numpy()


@traceable()
def block_of(tensor: DTensor) -> Array | None:
    """Return the block of *tensor*; autograd can follow it."""
    return tensor._block


@traceable()
def indexing_vjp(grad: DTensor, index: object, shape: Shape, layout: Layout) -> DTensor:
    """Return the gradient of ``t[index]`` in a tensor of this *shape* and *layout*. Collective over the mesh.

    It is *grad* added up at the index, and zero elsewhere; autograd can follow it.
    """
    name, result = "the gradient of t[index]", zeros(shape, grad.dtype, layout)
    with session(name, layout.mesh):
        if has_arrays(index):
            update(name, result, index, grad, np.add)
        else:
            setitem(result, index, grad)
    return result


def count_over(tensor: DTensor, axis: Axis) -> int:
    """Return the number of elements of *tensor* that a reduction over *axis* takes for each element of its result."""
    return prod(tensor.shape[a] for a in normalised_axes(axis, len(tensor.shape)))


def all_to_all_vjp(  # noqa: PLR0917 - that of all_to_all
    grad: ArrayLike,
    group_assignment: Groups | None,
    concat_dimension: int,
    split_dimension: int,
    split_count: int,
    comm: "MPI.Intracomm | None" = None,
) -> Array:
    """Return the gradient of `all_to_all`: an `all_to_all` with the two axes swapped. Collective over *comm*.

    Other arguments are those of `all_to_all`. Source: the gradient of the AllToAll op of TensorFlow.

    Parameters
    ----------
    grad: gradient with respect to the result of the call, on this rank

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: all_to_all_vjp([[world.rank], [2 + world.rank]], None, 0, 1, 2).tolist())
    [[[0, 1]], [[2, 3]]]
    """
    return all_to_all(grad, group_assignment, split_dimension, concat_dimension, split_count, comm)


def all_gather_vjp(
    grad: ArrayLike, group_assignment: Groups | None, dimension: int, comm: "MPI.Intracomm | None" = None
) -> Array:
    """Return the gradient of `all_gather`: a `reduce_scatter`. Collective over *comm*.

    Other arguments are those of `all_gather`.

    Parameters
    ----------
    grad: gradient with respect to the result of the call, on this rank

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: all_gather_vjp([1.0, 2.0], None, 0).tolist())
    [[2.0], [4.0]]
    """
    return reduce_scatter(grad, group_assignment, dimension, "sum", comm)


def reduce_scatter_vjp(
    grad: ArrayLike, group_assignment: Groups | None, dimension: int, comm: "MPI.Intracomm | None" = None
) -> Array:
    """Return the gradient of `reduce_scatter` with op ``sum``: an `all_gather`. Collective over *comm*.

    Other arguments are those of `reduce_scatter`.

    Parameters
    ----------
    grad: gradient with respect to the result of the call, on this rank

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: reduce_scatter_vjp([1.0 + world.rank], None, 0).tolist())
    [[1.0, 2.0], [1.0, 2.0]]
    """
    return all_gather(grad, group_assignment, dimension, comm)


def all_reduce_vjp(grad: ArrayLike, group_assignment: Groups | None, comm: "MPI.Intracomm | None" = None) -> Array:
    """Return the gradient of `all_reduce` with op ``sum``: the sum of *grad*. Collective over *comm*.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: all_reduce_vjp([1.0 + world.rank], None).tolist())
    [[3.0], [3.0]]
    """
    return all_reduce(grad, group_assignment, "sum", comm)


@traceable()
def broadcast_vjp(
    grad: ArrayLike, group_assignment: Groups | None, root: int = 0, comm: "MPI.Intracomm | None" = None
) -> Array:
    """Return the gradient of `broadcast`: the sum at the root, zeros elsewhere. Collective over *comm*.

    Other arguments are those of `broadcast`.

    Parameters
    ----------
    grad: gradient with respect to the result of the call, on this rank

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: broadcast_vjp([1.0 + world.rank], None, root=1).tolist())
    [[0.0], [3.0]]
    """
    total = all_reduce(grad, group_assignment, "sum", comm)
    world = world_of(comm)
    rows = [range(world.size)] if group_assignment is None else np.asarray(group_assignment).tolist()
    if not -1 < root < len(rows[0]):
        raise GroupError(f"root {root} is not a position in groups of {len(rows[0])} ranks")
    return total if world.rank in [row[root] for row in rows] else np.zeros_like(total)


def collective_permute_vjp(grad: ArrayLike, source_target_pairs: Pairs, comm: "MPI.Intracomm | None" = None) -> Array:
    """Return the gradient of `collective_permute`: the same with sources and targets swapped. Collective over *comm*.

    >>> import meshcomm as mc
    >>> with mc.simulate(3) as world:
    ...     world.run(lambda: collective_permute_vjp([world.rank + 1], [(0, 1), (1, 2)]).tolist())
    [[2], [3], [0]]
    """
    reversed_pairs = source_target_pairs
    with suppress(TypeError, ValueError):  # the collective says what is wrong with the pairs
        reversed_pairs = [(target, source) for source, target in source_target_pairs]
    return collective_permute(grad, reversed_pairs, comm)


DIFFERENTIABLE: dict[Callable[..., object], Callable[..., object]] = {}
"""For each operation of a feature, the function that returns its gradient: see `differentiable`."""


def differentiable(operation: Callable[..., object], vjp: Callable[..., object]) -> None:
    """Register *vjp* as the gradient of an *operation* of one tensor, so that autograd can differentiate it.

    Parameters
    ----------
    operation: function decorated with `traceable`
    vjp: function of the gradient with respect to the result and all arguments of the operation
    """
    DIFFERENTIABLE[operation] = vjp
