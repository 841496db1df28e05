"""The methods of tensors that are functions of NumPy.

Each calls the function of NumPy, which comes back by NumPy's protocol: see :mod:`meshcomm.ops.protocols`.
"""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

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

    def __getitem__(self, index: object) -> "DTensor":
        return self._made_by(operator.getitem, index)

    def __setitem__(self, index: object, value: object) -> None:
        self._made_by(operator.setitem, index, value)

    def __len__(self) -> int:
        shape: tuple[int, ...] = self.shape  # type: ignore[attr-defined]
        if not shape:
            raise TypeError("a tensor without axes has no length")
        return shape[0]

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a DTensor is not iterated over, element by element: use functions of whole tensors; t[i] for one index; "
            "t.local for the block of this rank; or t.to_numpy() for the global array (Collective)"
        )

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
