"""Variables: distributed tensors that have a name and can be assigned to.

In a scope (`LayoutMap.scope`) a variable waits for its path, such as ``blocks.0.kernel``: the attributes, list indices
and keys that lead to it from the outermost module made in the scope. The path gives it a layout. Then each rank makes
its own block; the global array is never made.
"""

from typing import Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.make import mapped
from meshcomm.core._arguments import as_array, as_dtype, as_shape, quote
from meshcomm.core._types import Array, DType, Shape, ShapeLike
from meshcomm.core.arrays.create import distribute, from_callback
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import specs_repr
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.core.ranks.meshes import get_default_mesh
from meshcomm.errors import DTypeError, LayoutError, ShapeError
from meshcomm.layout_maps.as_values import ActsAsValue
from meshcomm.layout_maps.scopes import ScopedVariable, current_scope


class Initializer(Protocol):
    """A function that returns a block of an initial value."""

    def __call__(self, slices: tuple[slice, ...], shape: Shape, dtype: DType, /) -> ArrayLike:
        """Return the block *slices* of the array of *shape* and *dtype*."""


Initial: TypeAlias = Array | DTensor | Initializer


class Variable(ActsAsValue, ScopedVariable):
    """A distributed tensor that has a name and can be assigned to.

    The variable gets its value

    - at once, if *layout* is given or *initial* is a DTensor, whatever a LayoutMap says;
    - in a scope (`LayoutMap.scope`), when its path is known: at the end of the scope, or when a module holds the
      variable and the program asks for the value. Until then do not change an array given as *initial*;
    - at once elsewhere, replicated on the mesh of `default_mesh`.

    Operators, NumPy's functions, slices and methods of tensors work on its `value`: ``v == 0`` compares elements, and
    ``v[0] = 1`` writes to them. ``+=`` and the other operators in place assign. As a key of a dict a variable is
    itself; ``v is w`` asks whether two variables are the same one.

    ``path`` is the path in the scope, or None for a variable made outside of scopes. ``LayoutError`` if there is no
    layout, no scope and no default mesh, or if *layout* and a DTensor conflict. ``ShapeError`` or ``DTypeError`` if
    *initial* does not fit *shape* or *dtype*. Source: tf.experimental.dtensor.DVariable and the variables of Keras.

    Parameters
    ----------
    initial: an array, the same on every rank; a scalar, which fills *shape*; a DTensor, which gives the variable its
        layout; or a function ``initial(slices, shape, dtype)`` that returns the block of the global array at *slices*,
        such as `random_normal`
    shape: the global shape, which only a function and a scalar need
    dtype: the dtype, by default that of *initial*
    trainable: whether `Module.trainable_variables` lists it
    name: a name for people, until there is a path
    layout: the layout

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     v = Variable(np.arange(3.0), layout=rows)
    ...     return v.assign_add(1).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[1.0, 2.0], [3.0]]
    """

    __module__ = "meshcomm"

    __slots__ = ("__weakref__", "_initial", "_layout_scope", "_value", "dtype", "name", "shape", "trainable")

    shape: Shape
    dtype: DType
    _initial: Initial | None

    def __init__(  # noqa: PLR0917 - the order of tf.Variable
        self,
        initial: ArrayLike | DTensor | Initializer,
        shape: ShapeLike | None = None,
        dtype: DTypeLike | None = None,
        trainable: bool = True,
        name: str | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.name, self.trainable, self.path = name, trainable, None
        self._initial, self.shape, self.dtype = _checked_initial(initial, shape, dtype)
        self._value: DTensor | None = None
        scope = current_scope()
        if isinstance(self._initial, DTensor):
            _check_conflict(self._initial.layout, layout)
            layout = self._initial.layout
        if layout is None and scope is None:
            layout = _default_layout(len(self.shape))
        if layout is not None:
            self._make(layout)
        self._layout_scope = scope  # last: the scope does not wait for a variable that could not be made

    def _make(self, layout: Layout) -> None:
        """Make the value; each rank makes its own block."""
        initial, shape, dtype = self._initial, self.shape, self.dtype
        if isinstance(initial, DTensor):
            self._value = _with_dtype(initial, dtype)
        elif callable(initial):
            self._value = from_callback(shape, dtype, layout, lambda slices: initial(slices, shape, dtype))
        else:
            assert initial is not None
            array = np.broadcast_to(initial, shape)
            self._value = from_callback(shape, dtype, layout, lambda slices: array[slices])
        self._initial = None

    @property
    def initialized(self) -> bool:
        """Whether the value has been made."""
        return self._value is not None

    @property
    def value(self) -> DTensor:
        """The value. ``LayoutError`` if the path is not known yet.

        `assign`, `assign_add`, ``v += x`` and the like do not change this tensor: they make a new one. ``v[i] = x``
        writes to its elements. In a scope this makes the value if a module holds the variable already.

        >>> import numpy as np, meshcomm as mc
        >>> v = Variable(np.arange(3), layout=mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> before = v.value
        >>> v.assign_add(1).value.to_numpy().tolist(), before.to_numpy().tolist()
        ([1, 2, 3], [0, 1, 2])
        """
        if self._value is None and self._layout_scope is not None:
            self._layout_scope.settle_early(self)
        if self._value is None:
            raise LayoutError(
                f"{self!r} has no layout yet: no Module made in its scope holds it, so its path is not known"
            )
        return self._value

    @property
    def layout(self) -> Layout:
        """The layout, which never changes."""
        return self.value.layout

    @property
    def mesh(self) -> Mesh:
        """The mesh of the layout."""
        return self.value.mesh

    @property
    def local(self) -> Array:
        """The block of this rank, or None outside of the mesh."""
        return self.value.local

    @overload
    def to_numpy(self, root: None = None) -> Array: ...

    @overload
    def to_numpy(self, root: int | None) -> Array | None: ...

    def to_numpy(self, root: int | None = None) -> Array | None:
        """Return the global array on every rank of the mesh, or on device *root* only. Collective over the mesh.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     v = Variable(np.arange(3), layout=mc.Layout(["x"], mc.create_mesh([("x", 2)])))
        ...     return v.to_numpy()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [array([0, 1, 2]), array([0, 1, 2])]
        """
        return self.value.to_numpy(root)

    def assign(self, value: "ArrayLike | DTensor | Variable") -> "Variable":
        """Make *value* the new value and return the variable. Collective for a DTensor in another layout.

        *value* is an array, the same on every rank, or a DTensor. A DTensor in another layout is moved, which is
        Collective over both meshes. The variable keeps its layout and its dtype. ``ShapeError`` if the shapes differ,
        ``DTypeError`` if *value* would lose its kind of number, ``MeshError`` if it is in another world.

        >>> import numpy as np, meshcomm as mc
        >>> v = Variable(np.zeros(3), layout=mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> v.assign([1, 2, 3]).to_numpy().tolist()
        [1.0, 2.0, 3.0]
        """
        tensor = self._checked_value(value, self.dtype)
        self._value = _with_dtype(self._in_own_layout(tensor), self.dtype)
        return self

    def assign_add(self, delta: "ArrayLike | DTensor | Variable") -> "Variable":
        """Add *delta* and return the variable. Collective for a DTensor in another layout.

        *delta* is a value as for `assign`, or one number to add to all elements.

        >>> import numpy as np, meshcomm as mc
        >>> v = Variable(np.zeros(3), layout=mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> v.assign_add([1, 2, 3]).assign_add(10).to_numpy().tolist()
        [11.0, 12.0, 13.0]
        """
        return self._combine(np.add, delta)

    def assign_sub(self, delta: "ArrayLike | DTensor | Variable") -> "Variable":
        """Subtract *delta* and return the variable. Collective for a DTensor in another layout.

        *delta* is a value as for `assign`, or one number to subtract from all elements.

        >>> import numpy as np, meshcomm as mc
        >>> v = Variable(np.zeros(3), layout=mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> v.assign_sub([1, 2, 3]).to_numpy().tolist()
        [-1.0, -2.0, -3.0]
        """
        return self._combine(np.subtract, delta)

    def _combine(self, operation: np.ufunc, delta: object) -> "Variable":
        value = self.value
        if not isinstance(delta, int | float | complex | np.generic):
            delta = self._in_own_layout(self._checked_value(delta))
        try:
            result: DTensor = operation(value, delta)
        except (TypeError, OverflowError) as error:
            raise DTypeError(f"{operation.__name__} does not work on {self!r}: {error}") from None
        self._value = _with_dtype(result, self.dtype)
        return self

    @refusable  # also for an array: another rank may move a tensor
    def _checked_value(self, value: object, dtype: DType | None = None) -> DTensor | Array:
        """Return *value* as a tensor or array, after checking that its shape fits, and that it fits into *dtype*."""
        tensor = value.value if isinstance(value, Variable) else value
        if isinstance(tensor, DTensor):
            self._check(tensor, dtype)
            return tensor
        array = as_array(tensor)
        self._check(array, dtype)
        return array

    def _check(self, value: DTensor | Array, dtype: DType | None) -> None:
        if value.shape != self.shape:
            raise ShapeError(f"Shape mismatch: {self!r} has shape {self.shape}, but the new value has {value.shape}")
        if dtype is not None:
            _check_dtype(value.dtype, dtype)

    def _in_own_layout(self, tensor: DTensor | Array) -> DTensor:
        """Return *tensor* in the variable's layout; the result may share its block with *tensor*."""
        layout = self.layout
        if not isinstance(tensor, DTensor):
            return distribute(tensor, layout)
        if tensor.layout == layout and tensor.mesh is layout.mesh:
            return tensor
        return relayout(tensor, layout)

    __iadd__ = assign_add
    __isub__ = assign_sub

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return the global array, as `DTensor` does. Collective over the mesh, unless each rank has all of it."""
        return self.value.__array__(dtype, copy)

    def __repr__(self) -> str:
        name = self.path or self.name
        specs = "not yet initialized" if self._value is None else specs_repr(self._value.layout.sharding_specs)
        return f"{type(self).__name__}({f'{name!r}, ' if name else ''}{self.shape}, {self.dtype}, {specs})"


class DVariable(Variable):
    """A `Variable` that gets its value at once, in *layout* or in the layout of a DTensor, also in a scope.

    ``LayoutError`` if there is neither a *layout* nor a DTensor, or if they conflict. The parameters are those of
    `Variable`; *initial* may be given as *initial_value*, as TensorFlow names it. Source:
    tf.experimental.dtensor.DVariable.

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

    __module__ = "meshcomm"

    __slots__ = ()

    def __init__(  # noqa: PLR0917 - the order of tf.experimental.dtensor.DVariable
        self,
        initial: ArrayLike | DTensor | Initializer | None = None,
        layout: Layout | None = None,
        dtype: DTypeLike | None = None,
        name: str | None = None,
        trainable: bool = True,
        shape: ShapeLike | None = None,
        *,
        initial_value: ArrayLike | DTensor | Initializer | None = None,
    ) -> None:
        if initial is None:
            initial, initial_value = initial_value, None
        if initial is None or initial_value is not None:
            raise TypeError("a DVariable takes one initial value: as initial, or as initial_value")
        if layout is None and not isinstance(initial, DTensor | Variable):
            raise LayoutError(
                f"Neither layout nor DTensor initial value are provided: a DVariable of a {type(initial).__name__} "
                "needs layout="
            )
        super().__init__(initial, shape, dtype, trainable, name, layout)


def _checked_initial(
    initial: "ArrayLike | DTensor | Variable | Initializer", shape: ShapeLike | None, dtype: DTypeLike | None
) -> tuple[Initial, Shape, DType]:
    """Return the initial value, and the shape and dtype of the variable."""
    if callable(initial):
        if shape is None:
            raise ShapeError(f"the initial value is a function, {quote(initial)}: give the variable shape=")
        return initial, as_shape(shape), as_dtype(float if dtype is None else dtype)
    if isinstance(initial, Variable):
        initial = initial.value
    if not isinstance(initial, DTensor):
        initial = as_array(initial)
    lengths = initial.shape if shape is None else as_shape(shape)
    if initial.shape not in ((), lengths):
        raise ShapeError(f"the initial value has shape {initial.shape}, but the variable has shape {lengths}")
    if isinstance(initial, DTensor) and initial.shape != lengths:
        raise ShapeError(f"the initial value is a DTensor of shape (), which does not fill shape {lengths}")
    checked_dtype = initial.dtype if dtype is None else as_dtype(dtype)
    _check_dtype(initial.dtype, checked_dtype)
    return initial, lengths, checked_dtype


def _default_layout(ndim: int) -> Layout:
    mesh = get_default_mesh()
    if mesh is None:
        raise LayoutError(
            "Neither layout nor DTensor initial value are provided, and there is neither a scope of a LayoutMap nor a "
            "default mesh around: a variable needs one of them for its layout"
        )
    return Layout.replicated(mesh, ndim)


def _check_dtype(dtype: DType, target: DType) -> None:
    if not np.can_cast(dtype, target, "same_kind"):
        raise DTypeError(f"a value of dtype {dtype} for a variable of dtype {target} would lose its kind of number")


def _check_conflict(initial_layout: Layout, layout: Layout | None) -> None:
    if layout is not None and layout != initial_layout:
        raise LayoutError(
            f"Conflicting layout are provided for initial value layout ({quote(initial_layout)}) and variable "
            f"({quote(layout)})."
        )


def _with_dtype(tensor: DTensor, dtype: DType) -> DTensor:
    """Return a copy of a tensor in *dtype*."""
    _check_dtype(tensor.dtype, dtype)
    return mapped(lambda block: block.astype(dtype, order="C"), tensor, dtype=dtype)
