"""Placement: to and from blocks, and the layouts of what functions return. Source: TensorFlow's DTensor.

A *component* is what they call a block; a process has one component, that of its rank.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from meshcomm._types import Array
from meshcomm.arrays.create import from_component
from meshcomm.arrays.dtensor import DTensor, fetch_layout, is_dtensor, unwrapped
from meshcomm.arrays.relayout import relayout
from meshcomm.errors import LayoutError, ShapeError
from meshcomm.layouts.layout import Layout


def pack(tensors: list[Any] | tuple[Any, ...], layout: Layout) -> DTensor:
    """Return the tensor whose component on this rank is the one in *tensors*. Collective over the mesh.

    The global shape is what the components add up to; replicas are trusted to be equal. ``ShapeError`` unless there is
    just one component and all fit together, ``LayoutError`` if it has another rank than the layout, ``DTypeError`` if
    it is a DTensor already, ``CollectiveMismatch`` if ranks pass different dtypes; all ranks raise the same. Source:
    tf.experimental.dtensor.pack.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     return pack([np.full(2, mesh.rank)], mc.Layout(["x"], mesh)).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [0, 0, 1, 1]
    """
    return from_component(lambda: _component(tensors, layout), layout)


def _component(tensors: Any, layout: Layout) -> Any:
    """Return the only one of *tensors*, checked."""
    if not isinstance(tensors, list | tuple):
        raise ShapeError(f"pack takes a list of components, one per rank: [block], not {type(tensors).__name__}")
    if len(tensors) != 1:
        raise ShapeError(f"pack expected 1 component, the block of this rank, but got {len(tensors)}")
    (component,) = tensors
    if component is not None and not isinstance(component, DTensor) and np.ndim(component) != layout.rank:
        raise LayoutError(
            "Packed layout should have the same rank as the rank for each component. "
            f"The rank of each component is: {np.ndim(component)}, while layout has rank: {layout.rank}"
        )
    return component


def unpack(tensor: DTensor) -> list[Array | None]:
    """Return the list of this process's components: the block of its rank, shared, or None outside the mesh. Local.

    ``LayoutError`` unless *tensor* is a DTensor. Source: tf.experimental.dtensor.unpack.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return unpack(mc.distribute(np.arange(3), rows))
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[array([0, 1])], [array([2])]]
    """
    held = unwrapped(tensor)
    if not isinstance(held, DTensor):
        raise LayoutError(f"unpack expects a DTensor, not {type(tensor).__name__}: only that has components")
    return [held.local]


def copy_to_mesh(tensor: DTensor | ArrayLike, layout: Layout) -> DTensor:
    """Return *tensor* divided as *layout* says, as `relayout` does. Collective over both meshes; Local for arrays.

    An array counts as replicated: every rank passes the same. Source: tf.experimental.dtensor.copy_to_mesh.
    """
    return relayout(tensor, layout, name="copy_to_mesh")


def call_with_layout(fn: Callable[..., Any], layout: Layout | None, *args: Any, **kwargs: Any) -> Any:
    """Return ``fn(*args, **kwargs)`` with the arrays and tensors in it divided as *layout* says. Collective.

    If *fn* has a parameter ``layout`` it is given the layout, so that each rank makes its own block only. Otherwise
    results are relaid, also in lists, tuples and dicts; what is no array stays as it is. A *layout* of None is a plain
    call. Local if *fn* takes the layout or returns plain arrays, which must be the same on every rank. Source:
    tf.experimental.dtensor.call_with_layout.

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
        raise LayoutError(f"call_with_layout takes a Layout or None, not {type(layout).__name__} ({layout!r})")
    if _takes_layout(fn):
        return fn(*args, layout=layout, **kwargs)
    return _relaid(fn(*args, **kwargs), layout)


def _takes_layout(fn: Callable[..., Any]) -> bool:
    try:
        return "layout" in inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a function that does not tell, such as numpy.arange
        return False


def _relaid(result: Any, layout: Layout) -> Any:
    """Return the arrays and tensors in *result* divided as *layout* says."""
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


def check_layout(tensor: Any, layout: Layout) -> None:
    """Raise ``LayoutError`` unless *tensor* has just this *layout*. Local.

    Layouts are equal if their specs and their meshes are, the meshes' names included. Source:
    tf.experimental.dtensor.check_layout.
    """
    found = fetch_layout(tensor)
    if found != layout:
        raise LayoutError(f"Layout of tensor: {found}, did not match expected layout: {layout}")
