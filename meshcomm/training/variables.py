"""Variables: distributed tensors with a name that can be assigned to, and trees of modules that hold them.

Inside of a scope (`LayoutMap.scope`) a variable waits for its path, ``blocks.0.kernel``: the attributes, list indices
and keys that lead to it from the outermost module that was made in the scope. With the path comes the layout, and with
the layout each rank makes its own block; the global array is never made. Variables and modules know scopes, but no
LayoutMap: what gives a path its layout is a function.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike

from meshcomm import _hooks
from meshcomm._arguments import as_array, as_dtype, as_shape, quote
from meshcomm._types import Array, ShapeLike
from meshcomm.arrays.create import distribute, from_callback
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.relayout import relayout
from meshcomm.errors import DTypeError, LayoutError, ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mesh import Mesh
from meshcomm.ops.random import Initializer
from meshcomm.ranks.meshes import get_default_mesh
from meshcomm.training.scopes import Waiting, current_scope


class Variable(NDArrayOperatorsMixin, Waiting):
    """A distributed tensor with a name that can be assigned to. Local.

    *initial* is an array, the same on every rank; a scalar, which fills *shape*; a DTensor, whose layout the variable
    takes; or a function ``initial(slices, shape, dtype)`` that returns the block of the global array at *slices*, such
    as `random_normal`. *shape* is needed for a function only. The value is made

    - at once, if *layout* is given or *initial* is a DTensor: this beats every rule of a LayoutMap;
    - inside of a scope (`LayoutMap.scope`), when the path is known: when the scope ends, or when the value is first
      asked for after a module holds the variable. Until then do not change an array given as *initial*;
    - at once elsewhere, replicated on the mesh of `default_mesh`.

    NumPy's operators and functions work on its `value`, except ``==``, which asks whether two are the same variable,
    and ``+=`` and ``-=``, which assign.

    `path` is where the variable was found, or None for variables that were made outside of a scope. ``LayoutError`` if
    there is no layout, no scope and no default mesh, or if *layout* and a DTensor conflict; ``ShapeError`` and
    ``DTypeError`` if *initial* does not fit *shape* or *dtype*. Source: tf.experimental.dtensor.DVariable and the
    variables of Keras.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     v = Variable(np.arange(3.0), layout=rows)
    ...     return v.assign_add(1).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[1.0, 2.0], [3.0]]
    """

    __slots__ = ("__weakref__", "_initial", "_layout_scope", "_value", "dtype", "name", "path", "shape", "trainable")

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    path: str | None

    def __init__(
        self,
        initial: ArrayLike | DTensor | Initializer,
        shape: ShapeLike | None = None,
        dtype: DTypeLike | None = None,
        trainable: bool = True,
        name: str | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.name, self.trainable, self.path = name, trainable, None
        self._initial, self.shape, self.dtype = _described(initial, shape, dtype)
        self._layout_scope = current_scope()
        self._value: DTensor | None = None
        if isinstance(self._initial, DTensor):
            _check_conflict(self._initial.layout, layout)
            layout = self._initial.layout
        if layout is None and self._layout_scope is None:
            layout = _default_layout(len(self.shape))
        if layout is not None:
            self._make(layout)

    def _make(self, layout: Layout) -> None:
        """Make the value, each rank its own block."""
        initial, shape, dtype = self._initial, self.shape, self.dtype
        if isinstance(initial, DTensor):
            self._value = _with_dtype(initial, dtype)
        elif callable(initial):
            self._value = from_callback(shape, dtype, layout, lambda slices: initial(slices, shape, dtype))
        else:
            whole = np.broadcast_to(initial, shape)
            self._value = from_callback(shape, dtype, layout, lambda slices: whole[slices])
        self._initial = None

    @property
    def initialized(self) -> bool:
        """Whether the value has been made. Local."""
        return self._value is not None

    @property
    def value(self) -> DTensor:
        """The value; later assignments do not change it. Local; ``LayoutError`` if the path is not known yet.

        A value that waits for its path is made here if a module holds the variable already.
        """
        if self._value is None and self._layout_scope is not None:
            self._layout_scope.find(self)
        if self._value is None:
            raise LayoutError(
                f"{self!r} has no layout yet: no Module made in its scope holds it, so its path is not known"
            )
        return self._value

    @property
    def layout(self) -> Layout:
        """The layout, which never changes. Local."""
        return self.value.layout

    @property
    def mesh(self) -> Mesh:
        """The mesh of the layout. Local."""
        return self.value.mesh

    @property
    def local(self) -> Array | None:
        """The block of this rank, or None outside of the mesh. Local."""
        return self.value.local

    def to_numpy(self, root: int | None = None) -> Array | None:
        """Return the global array on every rank of the mesh, or on device *root* only. Collective over the mesh."""
        return self.value.to_numpy(root)

    def assign(self, value: "ArrayLike | DTensor | Variable") -> "Variable":
        """Make *value* the new value and return the variable. Local; Collective for a DTensor in another layout.

        Local for an array, the same on every rank, and for a DTensor in the variable's layout; Collective over both
        meshes for one on another mesh. The variable keeps its layout and its dtype. ``ShapeError`` if the shapes
        differ, ``DTypeError`` if *value* would lose its kind of number, ``MeshError`` if it is in another world.
        """
        tensor = self._fitting(value)
        _check_dtype(tensor.dtype, self.dtype)
        self._value = _with_dtype(self._aligned(tensor), self.dtype)
        return self

    def assign_add(self, delta: "ArrayLike | DTensor | Variable") -> "Variable":
        """Add *delta* and return the variable. Collective and Local as `assign`.

        *delta* is what `assign` takes, or one number to be added everywhere.
        """
        return self._combine(np.add, delta)

    def assign_sub(self, delta: "ArrayLike | DTensor | Variable") -> "Variable":
        """Subtract *delta* and return the variable. Collective and Local as `assign`.

        *delta* is what `assign` takes, or one number to be subtracted everywhere.
        """
        return self._combine(np.subtract, delta)

    def _combine(self, operation: np.ufunc, delta: Any) -> "Variable":
        value = self.value
        if not isinstance(delta, int | float | complex | np.generic):
            delta = _block(self._aligned(self._fitting(delta)))
        try:
            result = np.asarray(operation(_block(value), delta))
        except (TypeError, OverflowError) as error:
            raise DTypeError(f"{operation.__name__} does not work on {self!r}: {error}") from None
        local = None if value.local is None else result
        self._value = _with_dtype(DTensor(local, value.layout, value.shape, result.dtype), self.dtype)
        return self

    def _fitting(self, value: Any) -> DTensor | Array:
        """Return *value* as a tensor or array, which has the variable's shape."""
        tensor = value.value if isinstance(value, Variable) else value
        if not isinstance(tensor, DTensor):
            tensor = as_array(tensor)
        if tensor.shape != self.shape:
            raise ShapeError(
                f"Shape mismatch: {self!r} has shape {self.shape}, but what is assigned has {tensor.shape}"
            )
        return tensor

    def _aligned(self, tensor: DTensor | Array) -> DTensor:
        """Return *tensor* in the variable's layout; its block may be that of *tensor*."""
        layout = self.layout
        if not isinstance(tensor, DTensor):
            return distribute(tensor, layout)
        if tensor.layout == layout and tensor.mesh is layout.mesh:
            return tensor
        return relayout(tensor, layout)

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__
    __iadd__ = assign_add
    __isub__ = assign_sub

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _hooks.call("numpy", ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        return _hooks.call("numpy", func, None, tuple(map(unwrapped, args)), kwargs)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the block if it is the whole array; refuse otherwise. Local."""
        return self.value.__array__(dtype, copy)

    def __repr__(self) -> str:
        name = self.path or self.name
        specs = "not yet initialized" if self._value is None else self._value.layout.sharding_specs
        return f"{type(self).__name__}({f'{name!r}, ' if name else ''}{self.shape}, {self.dtype}, {specs})"


class DVariable(Variable):
    """A variable whose value is made at once, in the layout given or in that of a DTensor. Local.

    As `Variable`, but no scope has a say. ``LayoutError`` if there is neither a *layout* nor a DTensor, or if they
    conflict. Source: tf.experimental.dtensor.DVariable.

    >>> import meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    ...     v = DVariable(mc.zeros((2, 2), "i4", rows))
    ...     return v.assign(mc.ones((2, 2), "i4", columns)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[1, 1]], [[1, 1]]]
    """

    __slots__ = ()

    def __init__(
        self,
        initial: ArrayLike | DTensor | Initializer,
        layout: Layout | None = None,
        dtype: DTypeLike | None = None,
        name: str | None = None,
        trainable: bool = True,
        shape: ShapeLike | None = None,
    ) -> None:
        if layout is None and not isinstance(initial, DTensor | Variable):
            raise LayoutError(
                f"Neither layout nor DTensor initial value are provided: a DVariable of a {type(initial).__name__} "
                "needs layout="
            )
        super().__init__(initial, shape, dtype, trainable, name, layout)


def _described(
    initial: Any, shape: ShapeLike | None, dtype: DTypeLike | None
) -> tuple[Any, tuple[int, ...], np.dtype[Any]]:
    """Return the initial value, and the shape and dtype of the variable."""
    if callable(initial):
        if shape is None:
            raise ShapeError(f"the initial value is a function, {quote(initial)}, which needs shape=")
        return initial, as_shape(shape), as_dtype(float if dtype is None else dtype)
    if isinstance(initial, Variable):
        initial = initial.value
    if not isinstance(initial, DTensor):
        initial = as_array(initial)
    lengths = initial.shape if shape is None else as_shape(shape)
    if initial.shape not in ((), lengths):
        raise ShapeError(f"the initial value has shape {initial.shape}, but the variable is to have shape {lengths}")
    if isinstance(initial, DTensor) and initial.shape != lengths:
        raise ShapeError(f"the initial value is a DTensor of shape (), which does not fill shape {lengths}")
    kind = initial.dtype if dtype is None else as_dtype(dtype)
    _check_dtype(initial.dtype, kind)
    return initial, lengths, kind


def _default_layout(rank: int) -> Layout:
    mesh = get_default_mesh()
    if mesh is None:
        raise LayoutError(
            "Neither layout nor DTensor initial value are provided, and there is neither a scope of a LayoutMap nor a "
            "default mesh around: a variable takes its layout from one of them"
        )
    return Layout.replicated(mesh, rank)


def _check_dtype(dtype: np.dtype[Any], kind: np.dtype[Any]) -> None:
    if not np.can_cast(dtype, kind, "same_kind"):
        raise DTypeError(f"a value of dtype {dtype} for a variable of dtype {kind} would lose its kind of number")


def _check_conflict(initial: Layout, layout: Layout | None) -> None:
    if layout is not None and layout != initial:
        raise LayoutError(
            f"Conflicting layout are provided for initial value layout ({quote(initial)}) and variable "
            f"({quote(layout)})."
        )


def _block(tensor: DTensor) -> Array:
    """Return the block of this rank; outside of the mesh an empty one, so that dtypes fit or not on all ranks."""
    return np.empty(0, tensor.dtype) if tensor.local is None else tensor.local


def _with_dtype(tensor: DTensor, dtype: np.dtype[Any]) -> DTensor:
    """Return a tensor of *dtype* with a block of its own."""
    _check_dtype(tensor.dtype, dtype)
    local = None if tensor.local is None else tensor.local.astype(dtype, order="C")
    return DTensor(local, tensor.layout, tensor.shape, dtype)
