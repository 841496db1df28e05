"""TensorFlow's names: tensors from and to blocks, and the layouts of results.

TensorFlow calls a block a *component*. A process has one component, the block of its rank.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.core._arguments import quote
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.arrays.create import from_component
from meshcomm.core.arrays.dtensor import DTensor, Tensor, TensorLike, fetch_layout, is_dtensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mistakes import no_layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import LayoutError, ShapeError


def pack(tensors: Sequence[ArrayLike], layout: Layout) -> DTensor:
    """Return a tensor from the component of each rank, the only one in its list *tensors*. Collective over the mesh.

    The components add up to the global shape. Nobody checks that replicas are equal. ``ShapeError`` unless there is
    one component and all fit together; ``LayoutError`` if a component has another number of axes than the layout;
    ``DTypeError`` if it is a DTensor already; ``CollectiveMismatch`` if ranks pass different dtypes. All ranks raise
    the same error. Source: tf.experimental.dtensor.pack.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     return pack([np.full(2, mesh.rank)], mc.Layout(["x"], mesh)).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [0, 0, 1, 1]
    """
    return from_component(lambda: _only_component(tensors, layout), layout)


def _only_component(tensors: object, layout: Layout) -> ArrayLike:
    """Return the only component in *tensors*, after its checks."""
    if not isinstance(tensors, list | tuple):
        raise ShapeError(f"pack takes a list of components, one per rank: [block], not {type(tensors).__name__}")
    if len(tensors) != 1:
        raise ShapeError(f"pack expected 1 component, the block of this rank, but got {len(tensors)}")
    component: ArrayLike = tensors[0]
    if component is not None and not isinstance(component, DTensor) and np.ndim(component) != layout.ndim:
        raise LayoutError(
            "Packed layout should have the same rank as the rank for each component. "
            f"The rank of each component is: {np.ndim(component)}, while layout has rank: {layout.ndim}"
        )
    return component


def unpack(tensor: TensorLike) -> list[Array]:
    """Return the list of the components of this process: the block of its rank, or None if that is outside the mesh.

    The block is not copied. ``LayoutError`` unless *tensor* is a DTensor. Source: tf.experimental.dtensor.unpack.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return unpack(mc.distribute(np.arange(3), rows))
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[array([0, 1])], [array([2])]]
    """
    value = unwrapped(tensor)
    if not isinstance(value, DTensor):
        raise LayoutError(f"unpack expects a DTensor, not {type(tensor).__name__}: only that has components")
    return [value.local]


def copy_to_mesh(tensor: Tensor, layout: Layout) -> DTensor:
    """Return *tensor* in *layout*, as `relayout` does. Collective over the meshes of both if it is a DTensor.

    An array counts as replicated: every rank passes the same one, and nothing is sent. Source:
    tf.experimental.dtensor.copy_to_mesh.

    >>> import numpy as np, meshcomm as mc
    >>> layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
    >>> mc.copy_to_mesh(np.arange(3), layout).local
    array([0, 1, 2])
    """
    return relayout(tensor, layout, name="copy_to_mesh")


@refusable
def call_with_layout(fn: Callable[..., object], layout: Layout | None, *args: object, **kwargs: object) -> Value:
    """Return ``fn(*args, **kwargs)`` with its arrays and tensors in *layout*. Collective if tensors have to move.

    If *fn* has a parameter ``layout``, it gets the layout, so that each rank makes only its own block. Otherwise the
    result is brought to the layout: an array, which must be the same on every rank, a tensor, or lists, tuples and
    dicts of these. Other results stay as they are. If *layout* is None, this only calls *fn*. Source:
    tf.experimental.dtensor.call_with_layout.

    Parameters
    ----------
    fn: a function
    layout: a Layout or None
    *args, **kwargs: arguments of *fn*

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return [call_with_layout(fn, rows, 3).local.tolist() for fn in (mc.ones, np.arange)]
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[1.0, 1.0], [0, 1]], [[1.0], [2]]]
    """
    if layout is None:
        return fn(*args, **kwargs)
    if not isinstance(layout, Layout):
        raise no_layout("call_with_layout takes a Layout or None", layout)
    if _takes_layout(fn):
        return fn(*args, layout=layout, **kwargs)
    return _relaid(fn(*args, **kwargs), layout)


def _takes_layout(fn: Callable[..., object]) -> bool:
    try:
        return "layout" in inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a function without a signature, such as numpy.arange
        return False


def _relaid(result: Value, layout: Layout) -> Value:
    """Return *result* with its arrays and tensors in *layout*."""
    if is_dtensor(result) or isinstance(result, np.ndarray):
        return relayout(result, layout, name="call_with_layout")
    if isinstance(result, Mapping):
        return {key: _relaid(value, layout) for key, value in result.items()}
    if isinstance(result, list | tuple):
        values = [_relaid(value, layout) for value in result]
        if hasattr(result, "_fields"):  # a named tuple
            return type(result)(*values)
        return type(result)(values)
    return result


def check_layout(tensor: object, layout: Layout) -> None:
    """Raise ``LayoutError`` unless *tensor* has just this *layout*.

    Layouts are equal if their specs and their meshes are, the meshes' names included. Source:
    tf.experimental.dtensor.check_layout.

    >>> import meshcomm as mc
    >>> layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
    >>> mc.check_layout(mc.ones(3, int, layout), layout)
    >>> mc.check_layout(mc.ones(3, int, layout), layout.replicated(layout.mesh, 1))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    meshcomm.LayoutError: ...
    """
    tensor_layout = fetch_layout(tensor)
    if tensor_layout != layout:
        raise LayoutError(f"Layout of tensor: {tensor_layout}, did not match expected layout: {quote(layout)}")
