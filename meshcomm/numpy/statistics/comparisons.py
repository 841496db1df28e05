"""Whole tensors compared: functions of NumPy that return a bool, the same on all ranks of the mesh."""

from collections.abc import Callable, Sequence
from operator import eq

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain
from meshcomm.blocks.make import make, on_blocks, on_device
from meshcomm.blocks.map import elementwise
from meshcomm.blocks.rules import Operand, broadcast_shape, mesh_of, sample, shape_of
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.statistics.statistics import all, any


@implements(np.isclose, partly=True)
def isclose(
    a: DTensor | ArrayLike,
    b: DTensor | ArrayLike,
    rtol: DTensor | ArrayLike = 1e-5,
    atol: DTensor | ArrayLike = 1e-8,
    equal_nan: bool = False,
) -> DTensor:
    """Return where *a* and *b* are equal within tolerances, as numpy.isclose. Collective if an operand has to move.

    The tolerances are numbers, or operands as *a* and *b* are. Layouts are those of other elementwise functions.
    """
    return elementwise("numpy.isclose", _closeness(equal_nan), [unwrapped(x) for x in (a, b, rtol, atol)])


@implements(np.allclose, partly=True)
def allclose(
    a: DTensor | ArrayLike,
    b: DTensor | ArrayLike,
    rtol: DTensor | ArrayLike = 1e-5,
    atol: DTensor | ArrayLike = 1e-8,
    equal_nan: bool = False,
) -> bool | None:
    """Return whether *a* and *b* are equal within tolerances, as numpy.allclose. Collective over the mesh.

    A bool, the same on all ranks of the mesh; None on other ranks.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(3.0), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.allclose(t, [0, 1, 2]), np.array_equal(t, t + 1)
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [(True, False), (True, False)]
    """
    return _true_for_all("numpy.allclose", _closeness(equal_nan), [unwrapped(x) for x in (a, b, rtol, atol)])


@implements(np.array_equal, partly=True)
def array_equal(a1: DTensor | ArrayLike, a2: DTensor | ArrayLike, equal_nan: bool = False) -> bool | None:
    """Return whether shapes and all elements are equal, as numpy.array_equal. Collective over the mesh.

    With *equal_nan* NaN is equal to NaN. A bool on all ranks of the mesh, None on other ranks.
    """
    operands = _agreed_operands("numpy.array_equal", a1, a2)
    if shape_of(operands[0]) != shape_of(operands[1]):
        return _on_mesh_ranks(False, operands)
    return _true_for_all("numpy.array_equal", _equal_or_nan if equal_nan else _equality(operands), operands)


@implements(np.array_equiv, partly=True)
def array_equiv(a1: DTensor | ArrayLike, a2: DTensor | ArrayLike) -> bool | None:
    """Return whether all elements are equal after broadcasting, as numpy.array_equiv. Collective over the mesh.

    A bool on all ranks of the mesh, None on other ranks.
    """
    operands = _agreed_operands("numpy.array_equiv", a1, a2)
    try:
        broadcast_shape("numpy.array_equiv", [shape_of(x) for x in operands])
    except ShapeError:
        return _on_mesh_ranks(False, operands)
    return _true_for_all("numpy.array_equiv", _equality(operands), operands)


@implements(np.may_share_memory, partly=True)
def may_overlap(a: object, b: object, max_work: int | None = None) -> bool | None:
    """Return whether blocks of any rank may overlap, as numpy.may_share_memory. Collective over the mesh.

    A bool on all ranks of the mesh, None on other ranks. True also for a read-only array of the shape of a tensor:
    `numpy.asarray` of a tensor returns one, and libraries call this to learn whether they must copy before they write.
    """

    operands: list[Value] = [unwrapped(a), unwrapped(b)]
    read_only = [x for x in operands if isinstance(x, np.ndarray) and not x.flags.writeable]
    may_be_export = bool(read_only) and np.shape(operands[0]) == np.shape(operands[1])

    def may_share(x: Array, y: Array, work: Value) -> bool:
        return may_be_export or np.may_share_memory(x, y, work)

    return _overlaps(may_share, a, b, max_work)


@implements(np.shares_memory, partly=True)
def overlap(a: object, b: object, max_work: int | None = None) -> bool | None:
    """Return whether blocks of any rank overlap, as the function of NumPy. Collective over the mesh.

    A bool on all ranks of the mesh, None on other ranks.
    """
    return _overlaps(np.shares_memory, a, b, max_work)


def _overlaps(function: Callable[..., bool], a: object, b: object, max_work: int | None) -> bool | None:
    operands = [unwrapped(a), unwrapped(b)]
    mesh, blocks = mesh_of(operands), [x._block if isinstance(x, DTensor) else x for x in operands]
    block = on_device(mesh, lambda _: np.array([function(*blocks, max_work)]))
    return on_blocks(bool, any(make(block, Layout([mesh.dim_names], mesh), (mesh.size,), np.dtype(bool))))


def _closeness(equal_nan: bool) -> Callable[..., Array]:
    def close(x: Array, y: Array, rtol: Array, atol: Array) -> Array:
        return np.asarray(np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan))

    return close


def _equality(operands: Sequence[Operand]) -> Callable[..., object]:
    """Return numpy.equal; operator.eq for structured dtypes, raw bytes and texts, which NumPy's == compares too."""
    return eq if {np.asarray(sample(x)).dtype.kind for x in operands} & {*"VSU"} else np.equal


def _equal_or_nan(x: Array, y: Array) -> Array:
    # NaN, and NaT of any dtype, are not equal to themselves.
    return np.equal(x, y) | (np.not_equal(x, x) & np.not_equal(y, y))


def _agreed_operands(name: str, *arguments: object) -> list[Operand]:
    operands = [unwrapped(x) for x in arguments]
    return agree_on_plain(name, operands, mesh_of(operands))


def _on_mesh_ranks(answer: bool, operands: Sequence[Operand]) -> bool | None:
    """Return *answer*; None on ranks outside of the mesh, as if blocks had been compared."""
    return None if mesh_of(operands).rank is None else answer


def _true_for_all(name: str, function: Callable[..., object], operands: Sequence[object]) -> bool | None:
    """Return whether an elementwise function is true everywhere. Collective over the mesh."""
    with np.errstate(all="ignore"):  # a warning that is an error must not stop one rank before the exchange
        result = elementwise(name, function, operands)
    return on_blocks(bool, all(result))
