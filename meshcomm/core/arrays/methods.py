"""The methods of tensors that are functions of NumPy.

Each calls the function of NumPy, which comes back by NumPy's protocol: see :mod:`meshcomm.numpy.protocols`.
"""

from collections.abc import Sequence
from typing import Literal, Self, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.core import _hooks
from meshcomm.core._arguments import NO_VALUE
from meshcomm.core._types import Axis, ShapeLike
from meshcomm.core.arrays._recipes import completed
from meshcomm.core.arrays.typed import TypedTensor


def refuse_order(name: str, order: str) -> None:
    """Raise ``TypeError`` if blocks cannot have *order*."""
    if order not in ("C", "K", "A"):
        raise TypeError(f"{name}: blocks are in C order, so order={order!r} cannot be")


def _options_given(**options: object) -> dict[str, object]:
    """Return the options that differ from NumPy's defaults."""
    return {
        name: value
        for name, value in options.items()
        if value is not NO_VALUE and value is not (True if name == "where" else None)
    }


class NumpyMethods(TypedTensor):
    """Methods of a DTensor that are functions of NumPy."""

    __slots__ = ()

    def __len__(self) -> int:
        if not self.shape:
            if self.dtype.names is not None:
                return len(self.dtype.names)  # of one record
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    def __contains__(self, value: object) -> bool:
        """Return whether an element equals *value*, as NumPy's arrays do: ``(t == value).any()``. Collective.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([2, 3, 4]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> 3 in t, 5 in t
        (True, False)
        """
        return bool((self == value).any())

    @property
    def T(self) -> Self:  # noqa: N802 - NumPy's name
        """A view of the tensor with its axes in reverse order.

        >>> import meshcomm as mc
        >>> mc.ones((3, 4, 5), int, mc.Layout.batch_sharded(mc.create_mesh([("x", 1)]), "x", rank=3)).T.shape
        (5, 4, 3)
        """
        return self._apply(np.transpose)

    def transpose(self, *axes: int | Sequence[int] | None) -> Self:
        """Return a view of the tensor with its axes in another order, as ``numpy.transpose(t, axes)``.

        >>> import numpy as np, meshcomm as mc
        >>> rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)]))
        >>> mc.distribute(np.arange(6).reshape(3, 2), rows).transpose().to_numpy().tolist()
        [[0, 2, 4], [1, 3, 5]]
        """
        return self._apply(np.transpose, axes[0] if len(axes) == 1 else axes or None)

    @property
    def real(self) -> Self:
        """A view of the real parts, as ``numpy.real(t)``; the tensor itself if it has no complex numbers."""
        return self._apply(np.real)

    @property
    def imag(self) -> Self:
        """A view of the imaginary parts, as ``numpy.imag(t)``; for a real dtype, a read-only tensor of zeros."""
        return self._apply(np.imag)

    def conj(self) -> Self:
        """Return the complex conjugates, as ``numpy.conj(t)``; the tensor itself if it has real numbers.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([1 + 2j, 3 - 1j]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.conj().to_numpy().tolist()
        [(1-2j), (3+1j)]
        """
        if self.dtype.kind in "biuf":
            return self
        conjugates: Self = np.conjugate(self)  # type: ignore[assignment]
        return conjugates

    conjugate = conj

    def sum(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        keepdims: bool = False,
        *,
        out: Self | None = None,
        initial: object = NO_VALUE,
        where: object = True,
    ) -> Self:
        """Return the sum over *axis*, as ``numpy.sum(t, axis)``. Collective over the mesh.

        The axes that remain keep their sharding; devices along the others hold replicas. ``ShapeError`` if there is no
        such axis, NumPy's ``TypeError`` if the dtype has no sum.

        Parameters
        ----------
        axis: one axis, several, or None for all
        dtype: dtype of the sum
        keepdims: True to keep reduced axes, with length 1
        out: a tensor to write the result to
        initial: one more element
        where: mask of the elements that count: a boolean tensor, or an array that is the same on all ranks

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
        ...     t = mc.distribute(np.ones((3, 2)), rows)
        ...     return t.sum(axis=0).local.tolist(), t.sum(axis=1).local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [([3.0, 3.0], [2.0, 2.0]), ([3.0, 3.0], [2.0])]
        """
        return self._apply(
            np.sum,
            axis=axis,
            dtype=dtype,
            keepdims=keepdims,
            **_options_given(out=out, initial=initial, where=where),
        )

    def mean(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        keepdims: bool = False,
        *,
        out: Self | None = None,
        where: object = True,
    ) -> Self:
        """Return the mean over *axis*, as ``numpy.mean(t, axis)``. Collective over the mesh.

        The layout and the errors are those of `sum`.

        Arguments are those of `sum`.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([[1, 2], [3, 5]]), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
        >>> t.mean().item(), t.mean(axis=0).to_numpy().tolist()
        (2.75, [2.0, 3.5])
        """
        return self._apply(np.mean, axis=axis, dtype=dtype, keepdims=keepdims, **_options_given(out=out, where=where))

    def max(
        self,
        axis: Axis = None,
        keepdims: bool = False,
        *,
        out: Self | None = None,
        initial: object = NO_VALUE,
        where: object = True,
    ) -> Self:
        """Return the maximum over *axis*, as ``numpy.max(t, axis)``. Collective over the mesh.

        The layout and the errors are those of `sum`; ``ShapeError`` also where there are no elements.

        Arguments are those of `sum`.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([[1, 2], [3, 0]]), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
        >>> t.max().item(), t.max(axis=0).to_numpy().tolist()
        (3, [3, 2])
        """
        return self._apply(
            np.max, axis=axis, keepdims=keepdims, **_options_given(out=out, initial=initial, where=where)
        )

    def min(
        self,
        axis: Axis = None,
        keepdims: bool = False,
        *,
        out: Self | None = None,
        initial: object = NO_VALUE,
        where: object = True,
    ) -> Self:
        """Return the minimum over *axis*, as ``numpy.min(t, axis)``. Collective over the mesh.

        The layout and the errors are those of `sum`; ``ShapeError`` also where there are no elements.

        Arguments are those of `sum`.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([[1, 2], [3, 0]]), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
        >>> t.min().item(), t.min(axis=0).to_numpy().tolist()
        (0, [1, 0])
        """
        return self._apply(
            np.min, axis=axis, keepdims=keepdims, **_options_given(out=out, initial=initial, where=where)
        )

    def prod(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        keepdims: bool = False,
        *,
        out: Self | None = None,
        initial: object = NO_VALUE,
        where: object = True,
    ) -> Self:
        """Return the product over *axis*, as ``numpy.prod(t, axis)``. Collective over the mesh.

        The layout and the errors are those of `sum`.

        Arguments are those of `sum`.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([2, 3, 4]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.prod().item()
        24
        """
        return self._apply(
            np.prod,
            axis=axis,
            dtype=dtype,
            keepdims=keepdims,
            **_options_given(out=out, initial=initial, where=where),
        )

    def any(self, axis: Axis = None, keepdims: bool = False, *, out: Self | None = None, where: object = True) -> Self:
        """Return whether an element along *axis* is true, as ``numpy.any(t, axis)``. Collective over the mesh.

        The layout and the errors are those of `sum`.

        Arguments are those of `sum`.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([2, 3, 4]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> (t > 3).any().item(), (t > 4).any().item()
        (True, False)
        """
        return self._apply(np.any, axis=axis, keepdims=keepdims, **_options_given(out=out, where=where))

    def all(self, axis: Axis = None, keepdims: bool = False, *, out: Self | None = None, where: object = True) -> Self:
        """Return whether all elements along *axis* are true, as ``numpy.all(t, axis)``. Collective over the mesh.

        The layout and the errors are those of `sum`.

        Arguments are those of `sum`.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([2, 3, 4]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> (t > 1).all().item(), (t > 2).all().item()
        (True, False)
        """
        return self._apply(np.all, axis=axis, keepdims=keepdims, **_options_given(out=out, where=where))

    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        *,
        ddof: float = 0,
        keepdims: bool = False,
        out: Self | None = None,
        where: object = True,
        mean: object = None,
    ) -> Self:
        """Return the variance over *axis*, as ``numpy.var(t, axis)``. Collective over the mesh.

        It is exact where the mean is large: devices merge counts, means and squared deviations. *ddof* is subtracted
        from the number of elements. The layout and the errors are those of `sum`.

        Parameters
        ----------
        axis: one axis, several, or None for all
        dtype: dtype of the computation
        ddof: number that is subtracted from the number of elements
        keepdims: True to keep reduced axes, with length 1
        out: a tensor to write the result to
        where: mask of the elements that count: a boolean tensor, or an array that is the same on all ranks
        mean: the mean, if it is known, with axes of length 1

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([1.0, 2.0, 3.0]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.var(ddof=1).item()
        1.0
        """
        return self._apply(
            np.var,
            axis=axis,
            dtype=dtype,
            ddof=ddof,
            keepdims=keepdims,
            **_options_given(out=out, where=where, mean=mean),
        )

    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        *,
        ddof: float = 0,
        keepdims: bool = False,
        out: Self | None = None,
        where: object = True,
        mean: object = None,
    ) -> Self:
        """Return the standard deviation over *axis*, as ``numpy.std(t, axis)``. Collective over the mesh.

        It is the square root of `var`.

        Arguments are those of `var`.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([1.0, 2.0, 3.0]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.std(ddof=1).item()
        1.0
        """
        return self._apply(
            np.std,
            axis=axis,
            dtype=dtype,
            ddof=ddof,
            keepdims=keepdims,
            **_options_given(out=out, where=where, mean=mean),
        )

    def argmax(self, axis: SupportsIndex | None = None, out: Self | None = None, *, keepdims: bool = False) -> Self:
        """Return the global index of the first maximum, as ``numpy.argmax(t, axis)``. Collective over the mesh.

        Without *axis* it is the index in the flattened global array. ``ShapeError`` where there are no elements.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([3, 1, 2]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.argmax().item()
        0
        """
        return self._apply(np.argmax, axis=axis, keepdims=keepdims, **_options_given(out=out))

    def argmin(self, axis: SupportsIndex | None = None, out: Self | None = None, *, keepdims: bool = False) -> Self:
        """Return the global index of the first minimum, as ``numpy.argmin(t, axis)``. Collective over the mesh.

        Without *axis* it is the index in the flattened global array. ``ShapeError`` where there are no elements.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([3, 1, 2]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.argmin().item()
        1
        """
        return self._apply(np.argmin, axis=axis, keepdims=keepdims, **_options_given(out=out))

    def cumsum(
        self, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None, out: Self | None = None
    ) -> Self:
        """Return the cumulative sums along *axis*, as ``numpy.cumsum(t, axis)``. Collective over the mesh.

        The result is in the layout of the tensor. By default, the flattened tensor is used.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     t = mc.distribute(np.array([3, 1, 2]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
        ...     return t.cumsum().local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [[3, 4], [6]]
        """
        return self._apply(np.cumsum, axis=axis, dtype=dtype, **_options_given(out=out))

    def cumprod(
        self, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None, out: Self | None = None
    ) -> Self:
        """Return the cumulative products along *axis*, as ``numpy.cumprod(t, axis)``. Collective over the mesh.

        The result is in the layout of the tensor. By default, the flattened tensor is used.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([3, 1, 2]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.cumprod().to_numpy().tolist()
        [3, 3, 6]
        """
        return self._apply(np.cumprod, axis=axis, dtype=dtype, **_options_given(out=out))

    # -- shapes -------------------------------------------------------------------------------------------------------

    def reshape(self, *shape: ShapeLike, order: str = "C", copy: bool | None = None) -> Self:
        """Return the tensor in another shape, as ``numpy.reshape(t, shape)``. Collective over the mesh.

        It is a view where NumPy's is one and nothing has to move. `meshcomm.reshape` also takes a layout.
        ``ShapeError`` if the number of elements differs.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.arange(6), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.reshape(2, -1).to_numpy().tolist()
        [[0, 1, 2], [3, 4, 5]]
        """
        return self._apply(np.reshape, shape[0] if len(shape) == 1 else shape, order=order, copy=copy)

    def ravel(self, order: str = "C") -> Self:
        """Return the tensor with one axis, as ``numpy.ravel(t)``; a view as `reshape` is. Collective over the mesh.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([[1, 2], [3, 4]]), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
        >>> t.ravel().to_numpy().tolist()
        [1, 2, 3, 4]
        """
        return self._apply(np.ravel, order=order)

    def flatten(self, order: str = "C") -> Self:
        """Return a copy of the tensor with one axis. Collective over the mesh.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([[1, 2], [3, 4]]), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
        >>> t.flatten().to_numpy().tolist()
        [1, 2, 3, 4]
        """
        return self._apply(np.reshape, -1, order=order, copy=True)

    def squeeze(self, axis: Axis = None) -> Self:
        """Return the tensor without axes of length 1, as ``numpy.squeeze(t, axis)``. Collective over the mesh.

        It is a view, unless such an axis is sharded and elements have to move.

        >>> import meshcomm as mc
        >>> t = mc.ones((3, 1), int, mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
        >>> t.squeeze().shape
        (3,)
        """
        return self._apply(np.squeeze, axis=axis)

    def swapaxes(self, axis1: int, axis2: int) -> Self:
        """Return a view of the tensor with two axes exchanged, as ``numpy.swapaxes(t, axis1, axis2)``.

        >>> import meshcomm as mc
        >>> t = mc.ones((3, 4, 5), int, mc.Layout.batch_sharded(mc.create_mesh([("x", 1)]), "x", rank=3))
        >>> t.swapaxes(0, 2).shape
        (5, 4, 3)
        """
        return self._apply(np.swapaxes, axis1, axis2)

    def dot(self, b: Self | ArrayLike, out: Self | None = None) -> Self:
        """Return the product with *b*, as ``numpy.dot(t, b)``: for vectors and matrices ``t @ b``. Collective.

        >>> import numpy as np, meshcomm as mc
        >>> rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)]))
        >>> mc.distribute(np.arange(6).reshape(3, 2), rows).dot([1, 10]).to_numpy().tolist()
        [10, 32, 54]
        """
        return self._apply(np.dot, b, out)

    def diagonal(self, offset: int = 0, axis1: SupportsIndex = 0, axis2: SupportsIndex = 1) -> Self:
        """Return the diagonals, as ``numpy.diagonal(t, offset, axis1, axis2)``: a view that cannot be written to.

        If one of the axes is cyclic, it returns a copy and is Collective over the mesh.

        >>> import numpy as np, meshcomm as mc
        >>> rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)]))
        >>> mc.distribute(np.arange(6).reshape(3, 2), rows).diagonal().to_numpy().tolist()
        [0, 3]
        """
        return self._apply(np.diagonal, offset, axis1, axis2)

    def trace(
        self, offset: int = 0, axis1: SupportsIndex = 0, axis2: SupportsIndex = 1, dtype: DTypeLike | None = None
    ) -> Self:
        """Return the sum of the diagonal, as ``numpy.trace(t, offset, axis1, axis2)``. Collective over the mesh.

        Parameters
        ----------
        offset: number of columns from the main diagonal to this one, to the right
        axis1, axis2: the axis of the rows, and that of the columns
        dtype: dtype of the sum

        >>> import numpy as np, meshcomm as mc
        >>> rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)]))
        >>> mc.distribute(np.arange(6).reshape(3, 2), rows).trace().item()
        3
        """
        return self._apply(np.trace, offset, axis1, axis2, dtype)

    # -- values -------------------------------------------------------------------------------------------------------

    def astype(
        self, dtype: DTypeLike, order: str = "K", *, casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Self:
        """Return the tensor with its elements converted to *dtype*; itself, if it has that and *copy* is False.

        Parameters
        ----------
        dtype: dtype of the result
        order: ``"C"``, or ``"K"`` or ``"A"``, which are equivalent here
        casting: NumPy's rule for conversions, which raises its ``TypeError``
        subok: not used: there is no class that derives from tensors
        copy: whether the result has memory of its own in any case

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([1.5, 2.5]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.astype(int).to_numpy().tolist()
        [1, 2]
        """
        refuse_order("t.astype", order)
        return self._apply(np.ndarray.astype, dtype, casting=casting, copy=copy)

    def clip(self, min: object = None, max: object = None, out: Self | None = None) -> Self:
        """Return the values limited to [min, max], as ``numpy.clip(t, min, max, out)``. Collective over the mesh.

        The bounds are numbers, arrays or tensors.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([3, 1, 2]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.clip(max=2).to_numpy().tolist()
        [2, 1, 2]
        """
        return self._apply(np.clip, min, max, **_options_given(out=out))

    def round(self, decimals: int = 0, out: Self | None = None) -> Self:
        """Return the values rounded to *decimals*, as ``numpy.round(t, decimals, out)``.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([1.25, 2.75]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.round().to_numpy().tolist()
        [1.0, 3.0]
        """
        return self._apply(np.round, decimals, **_options_given(out=out))

    # -- elements -----------------------------------------------------------------------------------------------------

    def take(
        self, indices: Self | ArrayLike, axis: int | None = None, out: Self | None = None, mode: str = "raise"
    ) -> Self:
        """Return the elements at *indices*, as ``numpy.take(t, indices, axis)``. Collective over the mesh.

        ``IndexError`` if an index is out of bounds, unless *mode* is ``"wrap"`` or ``"clip"``.

        Parameters
        ----------
        indices: a tensor in any layout, or a plain array, the same on all ranks
        axis: number of the axis; None for the elements in C order
        out: a tensor to write the result to
        mode: treatment of indices that are out of bounds

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([10, 11, 12]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.take([2, 0]).to_numpy().tolist()
        [12, 10]
        """
        return self._apply(np.take, indices, axis, out=out, mode=mode)

    def put(self, indices: Self | ArrayLike, values: Self | ArrayLike, mode: str = "raise") -> None:
        """Write *values* to the elements at *indices* in C order, as ``numpy.put(t, indices, values)``. Collective.

        ``IndexError`` if an index is out of bounds, unless *mode* is ``"wrap"`` or ``"clip"``.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([10, 11, 12]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.put([2, 0], [7, 8])
        >>> t.to_numpy().tolist()
        [8, 11, 7]
        """
        self._apply(np.put, indices, values, mode=mode)

    def choose(self, choices: Sequence[Self | ArrayLike] | Self, out: Self | None = None, mode: str = "raise") -> Self:
        """Return elements of *choices*, as ``numpy.choose(t, choices)``. Collective over the mesh.

        ``ValueError`` if an element is not a valid index into *choices*, unless *mode* is ``"wrap"`` or ``"clip"``.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([1, 0, 1]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.choose([[10, 11, 12], [20, 21, 22]]).to_numpy().tolist()
        [20, 11, 22]
        """
        return self._apply(np.choose, choices, out=out, mode=mode)

    def compress(self, condition: Self | ArrayLike, axis: int | None = None, out: Self | None = None) -> Self:
        """Return the elements where *condition* is true, as ``numpy.compress(condition, t, axis)``. Collective.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([10, 11, 12]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.compress([True, False, True]).to_numpy().tolist()
        [10, 12]
        """
        call = _hooks.call("numpy", np.compress, None, (condition, self), {"axis": axis, "out": out})
        return completed(call)

    def nonzero(self) -> tuple[Self, ...]:
        """Return where the elements are not zero, as ``numpy.nonzero(t)``. Collective over the mesh.

        ``ValueError`` for a tensor without axes.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([0, 11, 12]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.nonzero()[0].to_numpy().tolist()
        [1, 2]
        """
        return self._apply(np.nonzero)  # type: ignore[return-value]  # several

    def repeat(self, repeats: Self | ArrayLike, axis: int | None = None) -> Self:
        """Return each element *repeats* times, as ``numpy.repeat(t, repeats, axis)``. Collective over the mesh.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([10, 11, 12]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.repeat(2).to_numpy().tolist()
        [10, 10, 11, 11, 12, 12]
        """
        return self._apply(np.repeat, repeats, axis)

    def sort(
        self, axis: int = -1, kind: str | None = None, order: object = None, *, stable: bool | None = None
    ) -> None:
        """Sort the tensor along *axis* in its blocks, as NumPy's arrays do. Collective over the mesh.

        ``numpy.sort(t, axis)`` returns a sorted copy: the parameters and the errors are its own.

        Parameters
        ----------
        axis: number of the axis
        kind, stable: as NumPy has them. A sort that NumPy would make stable is stable over all ranks
        order: not supported: ``TypeError``

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     t = mc.distribute(np.array([3, 1, 2]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
        ...     t.sort()
        ...     return t.local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [[1, 2], [3]]
        """
        self._apply(np.ndarray.sort, axis=axis, kind=kind, order=order, stable=stable)

    def argsort(
        self, axis: int | None = -1, kind: str | None = None, order: object = None, *, stable: bool | None = None
    ) -> Self:
        """Return the indices that sort along *axis*, as ``numpy.argsort(t, axis)``. Collective over the mesh.

        They are global indices, in the layout of the tensor. ``ShapeError`` if there is no such axis.

        Arguments are those of `sort`.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     t = mc.distribute(np.array([3, 1, 2]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
        ...     return t.argsort().local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [[1, 2], [0]]
        """
        return self._apply(np.argsort, axis=axis, kind=kind, order=order, stable=stable)

    def partition(
        self, kth: ArrayLike, axis: int = -1, kind: Literal["introselect"] = "introselect", order: object = None
    ) -> None:
        """Partition the tensor in place along *axis*: it is fully sorted, as NumPy permits. Collective over the mesh.

        Parameters
        ----------
        kth: element index or indices to partition by; NumPy's errors for invalid ones
        axis: number of the axis
        kind, order: leave them out

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([3, 1, 2]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.partition(1)
        >>> t.to_numpy().tolist()
        [1, 2, 3]
        """
        self._apply(np.ndarray.partition, kth, axis=axis, kind=kind, order=order)

    def argpartition(
        self, kth: ArrayLike, axis: int | None = -1, kind: Literal["introselect"] = "introselect", order: object = None
    ) -> Self:
        """Return the indices that sort along *axis*, as ``numpy.argpartition(t, kth, axis)``. Collective.

        Arguments are those of `partition`.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([3, 1, 2]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.argpartition(1).to_numpy().tolist()
        [1, 2, 0]
        """
        return self._apply(np.argpartition, kth, axis=axis, kind=kind, order=order)

    def searchsorted(self, v: Self | ArrayLike, side: str = "left", sorter: Self | ArrayLike | None = None) -> Self:
        """Return where values belong in this tensor, which is sorted, as ``numpy.searchsorted(t, v)``. Collective.

        The result is in the layout of *v*; it is replicated if that is no tensor.

        Parameters
        ----------
        v: values of any shape
        side: ``left`` or ``right`` of elements that are equal to a value
        sorter: the indices that sort the tensor, if it is not sorted

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([1, 3, 3]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.searchsorted([2, 3], "right").to_numpy().tolist()
        [1, 3]
        """
        return self._apply(np.searchsorted, v, side, sorter)
