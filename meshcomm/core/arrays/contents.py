"""The methods of tensors that are methods of NumPy's arrays, but not functions of NumPy."""

from collections.abc import Iterator
from functools import partial
from os import PathLike, fspath
from typing import BinaryIO, Generic, Literal, Self, TypeVar, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike

from meshcomm.core._arguments import counted, ndim_of, quote
from meshcomm.core._files import resolved
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import WHOLE_ARRAY
from meshcomm.core._types import Array
from meshcomm.core.arrays import libraries
from meshcomm.core.arrays._storage import refresh
from meshcomm.core.arrays.methods import NumpyMethods
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.arrays.spec import View
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.calls import agree_on, collective
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import LayoutError, ShapeError

T = TypeVar("T", bound="ElementAccess")


class ElementAccess(NumpyMethods):
    """Methods and attributes of a DTensor that NumPy's arrays have, in addition to `NumpyMethods`."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Self]:
        """Return the slices along the first axis, each as ``t[i]``, or the fields of a record.

        Collective if the axis is cut. The elements of a tensor of one cut axis and up to 64 MiB are gathered at the
        first step; after a write to the tensor, each one is fetched by itself.
        """
        if not self.shape:
            if self.dtype.names is None:
                raise TypeError("iteration over a 0-d array")
            return (self[name] for name in self.dtype.names)
        if self.ndim == 1 and self.layout.num_shards(0) > 1 and self.nbytes <= WHOLE_ARRAY:
            return self._elements()
        return (self[i] for i in range(self.shape[0]))

    def _elements(self) -> Iterator[Self]:
        version, array = self._storage.version, self._gathered("iteration", self.mesh)
        view: View[Value] = View(None, (self.itemsize,), writeable=False)  # a write to a record would be lost
        whole_tensor = type(self)(array, Layout.replicated(self.mesh, 1), self.shape, self.dtype, view)
        for i in range(self.shape[0]):
            yield (whole_tensor if self._storage.version == version else self)[i]

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def base(self) -> Self | None:
        """The tensor that this one is a view of, even if elements had to move; None if it owns its memory."""
        source = self._storage.source
        if source is not None:
            return cast("Self", source.base if source.base.base is None else source.base.base)
        return None if self._view is None else self._view.root

    @property
    def flat(self) -> "Flat[Self]":
        """The elements in C order, as those of NumPy's arrays: `t.flat[i]` and `t.flat[i] = value`. Collective.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([[1, 2], [3, 4]]), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
        >>> t.flat[2:] = 7
        >>> int(t.flat[1]), t.to_numpy().tolist()
        (2, [[1, 2], [7, 7]])
        """
        return Flat(self)

    def item(self, *args: int) -> Value:
        """Return one element as a Python number: the only one, the one at these indices, or at one in C order.

        With indices it is Collective over the mesh. Without, ``ValueError`` if there are more elements, and
        ``LayoutError`` unless every device holds the element.

        >>> import meshcomm as mc
        >>> t = mc.ones((3, 2), int, mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
        >>> t.sum().item(), t.item(2, 1), t.item(5)
        (6, 1, 1)
        """
        if args:
            index = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
            element = self.flat[index[0]] if len(index) == 1 else self[index]
            return element.item()
        if self.size != 1:
            raise ShapeError(
                f"a tensor of shape {self.shape} has {counted(self.size, 'element')}; a number is just one"
            )
        refresh(self)
        if not self._has_block:
            raise LayoutError(
                f"this rank is outside of the mesh and does not hold the element of the {self._summary}: check "
                "first that t.mesh.rank is not None"
            )
        if not self.layout.is_fully_replicated():
            raise LayoutError(
                f"not every rank holds the element of the {self._summary}: use t.local, or t.to_numpy() (Collective)"
            )
        return self._block.item()

    def fill(self, value: object) -> None:
        """Set all elements to *value*, a number.

        >>> import meshcomm as mc
        >>> t = mc.ones(3, int, mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.fill(7)
        >>> t.tolist()
        [7, 7, 7]
        """
        if ndim_of(value) != 0:
            raise ValueError(f"t.fill takes a number, not {quote(value)}")
        self[...] = value

    def tolist(self) -> Value:
        """Return the global array as nested lists of Python numbers. Collective over the mesh.

        On a rank outside of the mesh it is None.

        >>> import meshcomm as mc
        >>> mc.ones(3, int, mc.Layout(["x"], mc.create_mesh([("x", 1)]))).tolist()
        [1, 1, 1]
        """
        with collective("tolist", self.mesh):
            global_array = self.to_numpy()
        return None if global_array is None else global_array.tolist()

    def tobytes(self, order: Literal["C", "F", "A", "K"] | None = "C") -> bytes | None:
        """Return the bytes of the global array in C order, or in Fortran's for ``F``. Collective over the mesh.

        On a rank outside of the mesh it is None.

        >>> import meshcomm as mc
        >>> mc.ones(3, "u1", mc.Layout(["x"], mc.create_mesh([("x", 1)]))).tobytes()
        b'\\x01\\x01\\x01'
        """
        with collective("tobytes", self.mesh):
            global_array = self.to_numpy()
        return None if global_array is None else global_array.tobytes(order)

    def tofile(self, fid: "str | PathLike[str] | BinaryIO", sep: str = "", format: str = "%s") -> None:
        """Write the elements to a file, as `numpy.ndarray.tofile` does: rank 0, which gets all of them. Collective.

        `meshcomm.save` writes in parallel, with shape and dtype.

        >>> import meshcomm as mc, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "t.bin")
        >>> mc.ones(3, "u1", mc.Layout(["x"], mc.create_mesh([("x", 1)]))).tofile(path)
        >>> os.path.getsize(path)
        3
        """
        if not isinstance(fid, str | PathLike):
            global_array = self.to_numpy()
            if global_array is not None:
                global_array.tofile(fid, sep, format)
            return
        path, name = fspath(fid), "ndarray.tofile"
        with collective(name, self.mesh) as location:
            array = self.to_numpy(root=0)
            if location is not None:
                agree_on(location.rank_set, f"{name} to {path!r}", partial(_write, path, array, sep, format))

    def _abstract_array(self) -> Array:
        """Return an array with the shape and the strides of NumPy's global array; its elements are not used."""
        if self._view is None:
            return np.empty(self.shape, self.dtype)
        return as_strided(np.empty(1, self.dtype), self.shape, self._view.strides, writeable=self._view.writeable)

    @property
    def strides(self) -> tuple[int, ...]:
        """The bytes between neighbours along each axis of NumPy's global array; ``t.local.strides`` for the block.

        >>> import meshcomm as mc
        >>> mc.zeros((3, 4), "f8", mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)]))).T.strides
        (8, 32)
        """
        return self._abstract_array().strides

    @property
    def flags(self) -> "Flags":
        """The flags of NumPy's global array, read-only; ``t.local.flags`` for the block.

        >>> import meshcomm as mc
        >>> mc.zeros((3, 4), "f8", mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)]))).T.flags.f_contiguous
        True
        """
        return Flags(self._abstract_array().flags)

    def view(self, dtype: DTypeLike | None = None) -> Self:
        """Return a tensor of the same memory with another dtype; a write through it changes this one.

        ``DTypeError`` if elements of another size do not fit: then the last axis must be whole on each device.

        >>> import numpy as np, meshcomm as mc
        >>> t = mc.distribute(np.array([1.0, -2.0]), mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> t.view(np.int64)[...] &= 2**63 - 1
        >>> t.tolist()
        [1.0, 2.0]
        """
        if isinstance(dtype, type) and issubclass(dtype, np.ndarray) and is_scripted():
            return libraries.view_as_class(self, dtype)
        return self._apply(np.ndarray.view, dtype)

    def byteswap(self, inplace: bool = False) -> Self:
        """Return a tensor with the bytes of each element in the other order; *inplace* does so in this one.

        >>> import meshcomm as mc
        >>> mc.ones(3, "i2", mc.Layout(["x"], mc.create_mesh([("x", 1)]))).byteswap().tolist()
        [256, 256, 256]
        """
        if inplace:
            self[...] = self.byteswap()
            return self
        result = self.copy()
        if result._has_block:
            result._block.byteswap(inplace=True)
        return result


def _write(path: str, array: Array | None, sep: str, format: str) -> None:
    """Write the elements of an array to a file, if this rank has them."""
    if array is not None:
        array.tofile(resolved(path), sep, format)  # no link of another user leads elsewhere


class Flags:
    """The flags of a tensor: NumPy's, which cannot be set."""

    __slots__ = ("_flags",)

    _flags: Value

    def __init__(self, flags: object) -> None:
        object.__setattr__(self, "_flags", flags)

    def __getattr__(self, name: str) -> bool:
        return bool(getattr(self._flags, name))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"the flag {name} of a tensor cannot be set: t.copy() is another tensor that keeps its values"
        )

    def __getitem__(self, key: str) -> bool:
        return bool(self._flags[key])

    def __repr__(self) -> str:
        return repr(self._flags)


class Flat(Generic[T]):
    """The elements of a tensor in C order, as `DTensor.flat`. All but ``len`` is Collective over the mesh."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: T) -> None:
        self._tensor = tensor

    def __len__(self) -> int:
        return self._tensor.size

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return the elements, for `numpy.asarray`: up to 64 MiB of them."""
        return self._tensor.__array__(dtype, copy).reshape(-1)

    def __iter__(self) -> Iterator[object]:
        """Iterate over the elements, as NumPy scalars. All ranks gather them at once: up to 64 MiB."""
        return iter(self.__array__())

    def copy(self) -> T:
        """Return a copy of the elements, with one axis."""
        return self._tensor.flatten()

    def __getitem__(self, index: object) -> T:
        """Return a copy of the elements at an integer, a slice, a mask or an index array of one axis."""
        if isinstance(index, int | np.integer):
            return self._tensor[_flat_index(self._tensor, index)].copy()
        return self._tensor.ravel()[index].copy()

    def __setitem__(self, index: Value, value: Value) -> None:
        """Write to the elements at *index*, as `__getitem__` takes it; values repeat if there are too few."""
        if isinstance(index, int | np.integer) and ndim_of(value) == 0:
            self._tensor[_flat_index(self._tensor, index)] = value
            return
        if isinstance(index, slice):
            flat_indices = np.arange(*index.indices(self._tensor.size))
        else:
            flat_indices = np.arange(self._tensor.size)[index]  # or NumPy's error
        if np.size(flat_indices):
            self._tensor.put(np.ravel(flat_indices), value)


@refusable
def _flat_index(tensor: ElementAccess, flat_index: int | np.integer) -> tuple[int, ...]:
    """Return the index along each axis of the element that has this *flat_index* in C order."""
    if not -tensor.size <= flat_index < tensor.size:
        raise IndexError(f"index {flat_index} is out of bounds for size {tensor.size}")
    return tuple(map(int, np.unravel_index(int(flat_index) % tensor.size, tensor.shape)))
