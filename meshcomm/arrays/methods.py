"""The methods of tensors that are functions of NumPy.

Each calls the function of NumPy, which comes back by NumPy's protocol: see :mod:`meshcomm.ops.protocols`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from meshcomm import _hooks
from meshcomm._types import Axis

if TYPE_CHECKING:
    from meshcomm.arrays.dtensor import DTensor


class NumpyMethods:
    """What a DTensor has as NumPy's arrays have it."""

    __slots__ = ()

    def _made_by(self, function: Callable[..., object], *args: object, **kwargs: object) -> "DTensor":
        """Return what *function*, one of NumPy, makes of this tensor."""
        made: DTensor = _hooks.call("numpy", function, None, (self, *args), kwargs)
        return made

    @property
    def T(self) -> "DTensor":  # noqa: N802 - NumPy's name
        """A copy of the tensor with its axes in reverse order."""
        return self._made_by(np.transpose)

    def sum(self, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> "DTensor":
        """Return the sum over *axis*, as ``numpy.sum(t, axis)``. Collective over the mesh.

        The axes that remain keep their sharding; devices along the others hold replicas. ``ShapeError`` if there is no
        such axis, NumPy's ``TypeError`` if the dtype has no sum.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
        ...     t = mc.distribute(np.ones((3, 2)), rows)
        ...     return t.sum(axis=0).local.tolist(), t.sum(axis=1).local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [([3.0, 3.0], [2.0, 2.0]), ([3.0, 3.0], [2.0])]
        """
        return self._made_by(np.sum, axis=axis, dtype=dtype, keepdims=keepdims)

    def mean(self, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> "DTensor":
        """Return the mean over *axis*, as ``numpy.mean(t, axis)``. Collective over the mesh.

        The layout and the errors are those of `sum`.
        """
        return self._made_by(np.mean, axis=axis, dtype=dtype, keepdims=keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> "DTensor":
        """Return the maximum over *axis*, as ``numpy.max(t, axis)``. Collective over the mesh.

        The layout and the errors are those of `sum`; ``ShapeError`` also where there are no elements.
        """
        return self._made_by(np.max, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> "DTensor":
        """Return the minimum over *axis*, as ``numpy.min(t, axis)``. Collective over the mesh.

        The layout and the errors are those of `sum`; ``ShapeError`` also where there are no elements.
        """
        return self._made_by(np.min, axis=axis, keepdims=keepdims)

    def sort(
        self, axis: int = -1, kind: str | None = None, order: object = None, *, stable: bool | None = None
    ) -> None:
        """Sort the tensor along *axis* in its blocks, as NumPy's arrays do. Collective over the mesh.

        ``numpy.sort(t, axis)`` returns a sorted copy: the parameters and the errors are its own.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     t = mc.distribute(np.array([3, 1, 2]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
        ...     t.sort()
        ...     return t.local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [[1, 2], [3]]
        """
        self._made_by(np.ndarray.sort, axis=axis, kind=kind, order=order, stable=stable)

    def argsort(
        self, axis: int | None = -1, kind: str | None = None, order: object = None, *, stable: bool | None = None
    ) -> "DTensor":
        """Return the indices that sort along *axis*, as ``numpy.argsort(t, axis)``. Collective over the mesh.

        They are global indices, in the layout of the tensor. ``ShapeError`` if there is no such axis.
        """
        return self._made_by(np.argsort, axis=axis, kind=kind, order=order, stable=stable)
