"""Distributed tensors: the block of this rank, a layout, and the global shape."""

from collections.abc import Sequence
from inspect import signature
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.core import _hooks
from meshcomm.core._arguments import quote
from meshcomm.core._mistakes import OF_TENSORS, meant_by_caller, missing_attribute
from meshcomm.core._tracing import Value, untraced
from meshcomm.core._tuning import MAX_UNPLANNED_BYTES, SMALL_MESHES, WHOLE_ARRAY
from meshcomm.core._types import Array
from meshcomm.core.arrays import libraries, scripted, short
from meshcomm.core.arrays._storage import count_write, refresh, write_back
from meshcomm.core.arrays._tensor import TensorBase, set_kind
from meshcomm.core.arrays.conditions import call_protocol
from meshcomm.core.arrays.contents import ElementAccess
from meshcomm.core.arrays.methods import NumpyMethods, refuse_order
from meshcomm.core.arrays.moving import RELAYOUT
from meshcomm.core.arrays.operators import Operators
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.arrays.standard import StandardMethods
from meshcomm.core.failures.watch import watch
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import Spec
from meshcomm.core.layouts.mesh import Mesh, one_device_mesh
from meshcomm.core.memory.copies import exact_copy
from meshcomm.core.ranks.agreement import checks_every_call
from meshcomm.core.ranks.calls import collective
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.meshes import location_in
from meshcomm.core.ranks.rank_sets import Location
from meshcomm.errors import LayoutError, MeshError

T = TypeVar("T")


class DTensor(TensorBase, ElementAccess, StandardMethods, Operators):
    """A global array that is sharded over the ranks of a mesh as its layout says.

    `local` is the block of this rank, or None if the rank is outside of the mesh. Tensors are made by
    `distribute`, `from_local`, `from_callback`, `zeros`, `ones`, `full`, `empty`, `zeros_like`, `ones_like`, and by
    `relayout`. Operators and NumPy's elementwise functions work on tensors as on arrays, elementwise ``==`` included:
    see :mod:`meshcomm.numpy`.
    """

    __module__ = "meshcomm"

    __array_priority__ = 1000
    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # as an array, whose == is elementwise
    __signature__ = signature(lambda local, layout, shape, dtype: None)  # which a compiled class does not tell

    def __setattr__(self, name: str, value: Value) -> None:
        if name in {"real", "imag", "flat"}:  # as NumPy's: t.imag += 1 ends with this
            getattr(self, name)[...] = value
            return
        if name == "shape":  # Collective, as reshape is
            self._reshape(self.reshape(value))  # or NumPy's error
            return
        advice = _ADVICE_ON_SETTING.get(name, "change its block in place, or make a new one")
        raise AttributeError(f"a DTensor cannot be given another {name}: {advice}")

    def _reshape(self, result: "DTensor") -> None:
        """Become *result*, which is this tensor in another shape: a view of it, or its elements after they moved."""
        is_view = result._view is not None and result._view.root is not None
        if self._view is not None and not is_view:
            raise AttributeError(
                "the shape of a view cannot be set if elements have to move: t.reshape(shape) makes one"
            )
        view = None if self._view is None else result._view
        storage = self._storage if is_view else None
        TensorBase.__init__(self, result._block, result.layout, result.shape, result.dtype, view, storage)

    if not TYPE_CHECKING:  # type checkers must report missing attributes

        def __getattr__(self, name: str) -> Any:
            if name in libraries.SCRIPT_ATTRIBUTES and is_scripted():
                return libraries.SCRIPT_ATTRIBUTES[name](self)
            names = () if name.startswith("_") else dir(type(self))  # NumPy often looks up attributes of arrays
            raise missing_attribute("a DTensor", name, OF_TENSORS, names, self)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of the global array."""
        size = 1
        for n in self.shape:
            size *= n
        return size

    @property
    def nbytes(self) -> int:
        """The number of bytes of the global array."""
        return self.size * self.dtype.itemsize

    @property
    def slices(self) -> tuple[slice, ...]:
        """The slices that cut the block of this rank from the global array; also of an array that all ranks have.

        ``LayoutError`` if an axis is `Cyclic`: ``t.layout.blocks(t.shape)`` gives the boxes of such a block.
        ``MeshError`` on a rank outside of the mesh.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     t = mc.zeros((3, 2), "f4", mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)])))
        ...     return t.slices
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program)[1])
        (slice(2, 3, None), slice(0, 2, None))
        """
        return self.layout.block_slices(self.shape)

    def relayout(
        self,
        layout: Layout | Sequence[Spec],
        name: str | None = None,
        *,
        out: "DTensor | None" = None,
        max_scratch_bytes: int | None = None,
    ) -> "DTensor":
        """Return this tensor in another layout, as `meshcomm.relayout` does. Collective over the meshes of both.

        Parameters
        ----------
        layout: the layout of the result, or a list of sharding specs on the tensor's own mesh
        name: name of this call in messages while it waits
        out: a tensor of the same shape and dtype in *layout*, to overwrite and return
        max_scratch_bytes: bytes that a rank may use beyond its old and its new block

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
        ...     return mc.zeros((4, 6), "f4", rows).relayout([mc.UNSHARDED, "x"]).local.shape
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [(4, 3), (4, 3)]
        """
        return _hooks.call("relayout", self, layout, out, name=name, max_scratch_bytes=max_scratch_bytes)

    def refresh(self) -> "DTensor":
        """Update a view whose elements had to move, and return it. Collective over the mesh.

        Calls that read the view update it themselves. Reading `local` does not communicate: call this before.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
        ...     backward = t[::-1]
        ...     t[0] = 7
        ...     return backward.refresh().local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [[3, 2], [1, 7]]
        """
        refresh(self)
        return self

    def written(self) -> None:
        """Report that the program has written to `local`, so that earlier views show it. Collective over the mesh.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
        ...     backward = t[::-1]
        ...     t.local[:] += 10
        ...     t.written()
        ...     return backward.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program)[0])
        [13, 12, 11, 10]
        """
        count_write(self)
        write_back(self)

    def copy(self, order: str = "C") -> "DTensor":
        """Return a tensor with a copy of the block. *order* is ``"C"``; ``"K"`` and ``"A"`` are the same here.

        >>> import meshcomm as mc
        >>> t = mc.zeros(3, int, mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> u = t.copy()
        >>> u.local[0] = 7
        >>> u.to_numpy().tolist(), t.to_numpy().tolist()
        ([7, 0, 0], [0, 0, 0])
        """
        refuse_order("t.copy", order)
        refresh(self)
        local = None if not self._has_block else exact_copy(self._block)
        return DTensor(local, self.layout, self.shape, self.dtype)

    def __float__(self) -> float:
        return float(self._only_element())

    def __int__(self) -> int:
        return int(self._only_element())

    def __complex__(self) -> complex:
        return complex(self._only_element())

    def _only_element(self) -> Any:
        if self.size != 1:
            raise TypeError(f"only a tensor of one element is a number, not one of shape {self.shape}")
        return self.item()

    def __index__(self) -> int:
        if self.ndim or self.dtype.kind not in "iu":
            raise TypeError(f"only an integer tensor without axes is an index, not one of {self.shape} {self.dtype}")
        return int(self.item())

    @overload
    def to_numpy(self, root: None = None) -> Array: ...

    @overload
    def to_numpy(self, root: int | None) -> Array | None: ...

    def to_numpy(self, root: int | None = None) -> Array | None:
        """Return the global array on every rank of the mesh, or only on device *root*. Collective over the mesh.

        Other ranks get None. ``MeshError`` if the mesh has no device *root*.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        ...     return mc.distribute(np.arange(3), rows).to_numpy(root=0)
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [array([0, 1, 2]), None]
        """
        if root is not None:
            with collective("to_numpy", self.mesh):  # so that the others learn of a wrong root
                check_root(root, self.mesh)
        return self._gathered("to_numpy", self.mesh if root is None else one_device_mesh(self.mesh, root))

    def _gathered(self, name: str, mesh: Mesh) -> Array | None:
        """Return the global array on the ranks of *mesh*, None on others. Collective over the tensor's mesh."""
        refresh(self)
        key = name, self.shape, self.dtype, self.layout, Layout.replicated(mesh, self.ndim), None, None
        return RELAYOUT(name, (self.mesh, mesh), key, (key,), (self._block, None))

    def _as_array(self) -> Array | None:
        """Return the global array for ``numpy.asarray``. Collective. A short tensor, if new, needs no plan."""
        refresh(self)
        name, key = "numpy.asarray", (self.layout, self.shape, self.dtype)
        if self.nbytes <= MAX_UNPLANNED_BYTES and self.mesh.size <= SMALL_MESHES and not checks_every_call():
            is_cyclic = any(map(self.layout.cyclic, range(self.ndim)))
            with collective(name, self.mesh) as location:
                if location is not None and location.rank_set.is_new(key) and not is_cyclic:
                    return short.gather_short(name, self._spec, self._block, location.rank_set)
        return self._gathered(name, self.mesh)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return the global array, for ``numpy.asarray``. Collective over the mesh, unless each rank has all of it.

        It is read-only, unless *copy* is True, as for ``numpy.array``: so NumPy's functions that write to their
        arguments, such as ``numpy.nditer``, fail instead of writing to the copy. ``TypeError`` on a rank outside of
        the mesh, and for a sharded tensor of more than 64 MiB: `to_numpy` gathers that.
        """
        if is_scripted():
            libraries.refuse_windows()
        refresh(self)
        is_whole = self.layout.is_fully_replicated()
        if not self._has_block or not (is_whole or self.nbytes <= WHOLE_ARRAY):
            size_text = f"it is sharded over its ranks, and has {self.nbytes:,} bytes of at most {WHOLE_ARRAY:,}"
            reason = "this rank is outside of its mesh" if not self._has_block else size_text
            raise TypeError(
                f"the {self._summary} cannot become a NumPy array by itself, because {reason}: {meant_by_caller()}use "
                "t.local for the block of this rank, or t.to_numpy() for the global array (Collective)"
            )
        if copy is False:
            raise ValueError("a DTensor does not lend its memory to an array; use t.local")
        array = self._block.copy() if is_whole else self._as_array()
        assert array is not None
        if dtype is not None:
            array = array.astype(dtype, copy=False)
        array.flags.writeable = bool(copy)
        return array

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        if is_scripted():  # all ranks pickle it, as an array of NumPy
            return self.__array__(copy=True).__reduce_ex__(protocol)
        raise TypeError(
            "a DTensor cannot be pickled: its other blocks are on other ranks. Pickle t.local and t.layout, and use "
            "meshcomm.from_local to make it again; or pickle t.to_numpy()"
        )

    def __copy__(self) -> "DTensor":
        return self.copy()

    def __deepcopy__(self, memo: dict[int, object]) -> "DTensor":
        return self.copy()

    def __bool__(self) -> bool:
        if self.size == 1:
            return bool(self.item())
        raise ValueError(
            f"the truth of a {self._summary} is that of no single element: use t.all() or t.any() (Collective), "
            "t.local, or t.to_numpy() (Collective); numpy.array_equal(t, u) compares"
        )

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self.item(), ndigits)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __str__(self) -> str:
        if is_scripted() and self._has_block:
            return np.array_str(self)  # type: ignore[arg-type]
        has_element = not self.shape and self._has_block and self.layout.is_fully_replicated()
        return str(self.item()) if has_element else repr(self)

    @property
    def _summary(self) -> str:
        """Shape, dtype and layout in one line: how `quote` names the tensor in messages."""
        mesh = self.mesh.dims_text or self.mesh.single_device
        return f"DTensor of {self.shape} {self.dtype} in {self.layout.specs_text} on mesh {mesh}"

    def __repr__(self) -> str:
        if is_scripted() and self._has_block:
            is_record = not self.shape and self.dtype.names is not None
            return repr(np.asarray(self)[()]) if is_record else np.array_repr(self)  # type: ignore[arg-type]
        if not self._has_block:
            block_text = "this rank is outside of the mesh"
        elif self._storage.is_stale():
            block_text = "its block is not up to date: t.refresh() brings it"
        else:
            values = np.array2string(self._block, threshold=100, edgeitems=2, separator=", ").replace("\n", "\n  ")
            block_text = f"the block of this rank, {self._block.shape}:\n  {values}"
        return f"{self._summary}; {block_text}"

    def _repr_html_(self) -> str:
        """Return the picture of the layout, for notebooks; it has no data."""
        return self.layout.html(self.shape, f"DTensor of {self.shape} {self.dtype}")


for _method in (*vars(NumpyMethods).values(), *vars(ElementAccess).values(), *vars(StandardMethods).values()):
    if isinstance(_method, FunctionType):  # Python's own messages are to name them as programs do
        _method.__qualname__ = f"DTensor.{_method.__name__}"

_ADVICE_ON_SETTING = {
    "local": "t.local[...] = block changes it in place, and from_local makes a new one",
    "layout": "t.relayout(layout) makes a new one (Collective)",
    "dtype": "t.astype(dtype) makes a new one",
}

set_kind(DTensor, call_protocol, location_in)
scripted.set_kind(DTensor)


class HoldsTensor(Protocol):
    """An object that holds a tensor, as a variable does."""

    @property
    def value(self) -> DTensor:
        """The tensor."""


TensorLike: TypeAlias = DTensor | HoldsTensor
Tensor: TypeAlias = TensorLike | ArrayLike
"""A tensor, an object that holds one, or a plain array, which counts as replicated."""


def unwrapped(x: T) -> DTensor | T:
    """Return the DTensor that *x* holds as its `value`, as a variable does; else *x* itself.

    An array of `meshcomm.numpy` that is whole on each rank becomes a tensor, too. Collective for a stale view, which
    is updated.
    """
    value = held_tensor(x)
    if isinstance(value, DTensor) and value._storage.source is not None:
        refresh(value)
    return value


def held_tensor(x: T) -> DTensor | T:
    """Return the same as `unwrapped`, for callers that read no elements: a stale view is not updated."""
    if isinstance(x, DTensor | np.generic | int | float | complex | list | tuple):
        return x
    if isinstance(x, np.ndarray):
        return x.as_tensor() if hasattr(x, "as_tensor") else x
    value = getattr(x, "value", None)
    return value if isinstance(value, DTensor) else x


def as_tensor(name: str, operand: object) -> DTensor:
    """Return the tensor that *operand* is or holds; ``LayoutError`` for a plain array."""
    tensor = unwrapped(operand)
    if not isinstance(tensor, DTensor):
        raise LayoutError(f"{name} is for DTensors, not for {type(operand).__name__}; NumPy has its own for arrays")
    return tensor


def check_root(root: object, mesh: Mesh) -> None:
    """Raise ``MeshError`` unless *root* is None or a device of *mesh*."""
    if root is None:
        return
    if isinstance(root, bool) or not isinstance(root, (int, np.integer)) or not 0 <= root < mesh.size:
        raise MeshError(f"root must be a device of the mesh, 0 to {mesh.size - 1}, not {quote(root)}")


def gather_by_device(communicator: Communicator, location: Location, mesh: Mesh, message: bytes) -> list[bytes]:
    """Return the *message* of every device of the mesh, in the order of devices. Collective over the mesh."""
    if watch.recorder is not None:
        watch.recorder.record_agreement()
    messages = communicator.allgather(message)
    message_of = dict(zip(location.rank_set.ranks, messages, strict=True))
    return [message_of[rank] for rank in mesh.ranks]


def member(location: Location, mesh: Mesh, device: int) -> int:
    """Return the position of *device* in the rank set of its mesh."""
    return location.rank_set.ranks.index(mesh.ranks[device])


def fetch_layout(tensor: object) -> Layout | None:
    """Return the layout of a DTensor or a variable, and None for anything else.

    Source: tf.experimental.dtensor.fetch_layout.

    >>> import numpy as np, meshcomm as mc
    >>> layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
    >>> mc.fetch_layout(mc.ones(3, int, layout)) == layout, mc.fetch_layout(np.ones(3))
    (True, None)
    """
    value = held_tensor(untraced(tensor))
    return value.layout if isinstance(value, DTensor) else None


def is_dtensor(tensor: object) -> bool:
    """Return whether *tensor* is a DTensor, or a variable that holds one.

    Source: tf.experimental.dtensor.is_dtensor.

    >>> import numpy as np, meshcomm as mc
    >>> layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
    >>> mc.is_dtensor(mc.ones(3, int, layout)), mc.is_dtensor(np.ones(3))
    (True, False)
    """
    return isinstance(held_tensor(untraced(tensor)), DTensor)
