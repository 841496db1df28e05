"""Variables: distributed tensors with a name that can be assigned to, and trees of modules that hold them.

Inside of a scope (`LayoutMap.scope`) a variable waits for its path, ``blocks.0.kernel``: the attributes, list indices
and keys that lead to it from the outermost module that was made in the scope. With the path comes the layout, and with
the layout each rank makes its own block; the global array is never made. Variables and modules know scopes, but no
LayoutMap: what gives a path its layout is a function.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike, NDArray

from meshcomm import _late
from meshcomm.collectives import as_array
from meshcomm.context import get_default_mesh
from meshcomm.dtensor import DTensor, Shape, distribute, from_callback, unwrapped
from meshcomm.errors import DTypeError, LayoutError, ShapeError
from meshcomm.initializers import Initializer
from meshcomm.layout import Layout
from meshcomm.mesh import Mesh, quote
from meshcomm.plan import as_dtype, as_shape
from meshcomm.relayout import relayout

Array = NDArray[Any]
LayoutOf: TypeAlias = Callable[[str, int], Layout]  # of a path and a rank


class Variable(NDArrayOperatorsMixin):
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
        shape: Shape | None = None,
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
        return _late.call("array_ufunc", ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        return _late.call("array_function", func, tuple(map(unwrapped, args)), kwargs)

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
        shape: Shape | None = None,
    ) -> None:
        if layout is None and not isinstance(initial, DTensor | Variable):
            raise LayoutError(
                f"Neither layout nor DTensor initial value are provided: a DVariable of a {type(initial).__name__} "
                "needs layout="
            )
        super().__init__(initial, shape, dtype, trainable, name, layout)


def _described(
    initial: Any, shape: Shape | None, dtype: DTypeLike | None
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


# -- modules ----------------------------------------------------------------------------------------------------------


class Module:
    """A base for what holds variables: as attributes, in lists, tuples and dicts, or in other modules. Local.

    The name of a variable is its path: attributes, indices and keys joined by dots. Nothing else is needed, also no
    ``super().__init__()``. A subclass whose parts have better names than its attributes overrides `parts`; one that
    makes variables later than itself, as at its first call, makes them ``with self.building():``.

    >>> import meshcomm as mc
    >>> class Dense(Module):
    ...     def __init__(self, n, layout):
    ...         self.kernel = mc.Variable(0.0, (n, n), layout=layout)
    >>> class Net(Module):
    ...     def __init__(self, layout):
    ...         self.blocks = [Dense(2, layout), Dense(2, layout)]
    >>> with mc.simulate(1) as world:
    ...     net = world.run(lambda: Net(mc.Layout.replicated(mc.create_mesh([("x", 1)]), 2)))[0]
    >>> [path for path, _ in net.named_variables()]
    ['blocks.0.kernel', 'blocks.1.kernel']
    """

    _layout_scope: "Scope | None"
    _layout_path: str | None  # from the outermost module, once the scope has ended

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Remember the scope around. Local."""
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        module = super().__new__(cls)
        object.__setattr__(module, "_layout_scope", current_scope())
        object.__setattr__(module, "_layout_path", None)
        if module._layout_scope is not None:
            module._layout_scope.modules.append(module)
        return module

    def parts(self) -> Mapping[str, object]:
        """Return what the module holds, by name: its attributes, unless a subclass names them otherwise. Local."""
        return {name: part for name, part in vars(self).items() if not name.startswith("_layout_")}

    def building(self) -> AbstractContextManager[None]:
        """Return a context in which the module makes variables after its own construction. Local.

        They belong to the scope that the module was made in: its map gives their layouts, by their paths from the
        outermost module of that scope.
        """
        scope = self._layout_scope
        return nullcontext() if scope is None else _entered(scope, self)

    def named_variables(self) -> "list[tuple[str, Variable]]":
        """Return the variables with their paths from this module, each variable once. Local.

        In the order of names, attributes with a leading underscore last, and of list indices; a variable that several
        paths lead to has the first of them.
        """
        return [(path, leaf) for path, leaf in _walk(self, "", set()) if isinstance(leaf, Variable)]

    def variables(self) -> list[Variable]:
        """Return the variables, in the order of `named_variables`. Local."""
        return [variable for _, variable in self.named_variables()]

    def trainable_variables(self) -> list[Variable]:
        """Return the variables that are trainable. Local."""
        return [variable for variable in self.variables() if variable.trainable]


Leaf: TypeAlias = Variable | Module


def _walk(module: Module, start: str, seen: set[int]) -> Iterator[tuple[str, Leaf]]:
    """Yield what *module*, whose path is *start*, holds itself and in other modules, with the first path to each."""
    seen.add(id(module))
    for name, leaf in _held(module):
        if id(leaf) not in seen:
            seen.add(id(leaf))
            path = f"{start}.{name}" if start else name
            yield path, leaf
            if isinstance(leaf, Module):
                yield from _walk(leaf, path, seen)


def _held(module: Module) -> Iterator[tuple[str, Leaf]]:
    """Yield the variables and modules that *module* holds itself, with their names."""
    parts = module.parts()
    for name in sorted(parts, key=lambda name: (name.startswith("_"), name)):
        yield from _leaves(name, parts[name], ())


def _leaves(name: str, part: object, around: tuple[int, ...]) -> Iterator[tuple[str, Leaf]]:
    if isinstance(part, Variable | Module):
        yield name, part
    elif isinstance(part, Mapping | list | tuple) and id(part) not in around:
        for key, child in _entries(name, part):
            yield from _leaves(f"{name}.{key}", child, (*around, id(part)))


def _entries(name: str, part: Mapping[Any, Any] | list[Any] | tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Return the entries of a container with their names."""
    if not isinstance(part, Mapping):
        return [(str(i), child) for i, child in enumerate(part)]
    entries = sorted(((str(key), child) for key, child in part.items()), key=lambda entry: entry[0])
    for (key, _), (other, _) in pairwise(entries):
        if key == other:
            raise LayoutError(f"two keys of the dict {name!r} are named {key!r}; the paths of variables must differ")
    return entries


# -- scopes -----------------------------------------------------------------------------------------------------------


class Scope:
    """How the variables made in one scope get their layouts.

    *modules* are those made in it, in the scopes around it and inside of it, until the outermost one ends: which
    module is the outermost must not depend on when Python frees memory, for that differs from rank to rank.
    """

    def __init__(self, layout_of: LayoutOf, modules: list[Module]) -> None:
        self.layout_of = layout_of
        self.modules = modules
        self._found: list[Variable] = []  # whose values were asked for before the scope ended

    def __deepcopy__(self, memo: object) -> "Scope":
        return self  # a copy of a module, or of a variable that waits, is in the same scope

    def find(self, variable: Variable) -> None:
        """Give *variable*, and those of its scope in the same tree, their paths and values, if a module holds it."""
        for root in _roots(self.modules):
            if any(other is variable for other in root.variables()):
                self._found += [other for other in root.variables() if not other.initialized]
                return _settle(root, lambda leaf: isinstance(leaf, Variable) and leaf._layout_scope is self)
        return None

    def finish(self, around: "tuple[Scope, ...]") -> None:
        """Give all variables of scopes that have ended, as those *around* have not, their paths and values."""
        for root in _roots(self.modules):
            _settle(root, lambda leaf: leaf._layout_scope not in around)
            for path, variable in root.named_variables():
                if any(other is variable for other in self._found):
                    self._check_found(variable, path)

    def _check_found(self, variable: Variable, path: str) -> None:
        """Give a variable that was used early its final path, which must not give it another layout."""
        if variable.path == path:
            return
        wanted = self.layout_of(path, len(variable.shape))
        if wanted != variable.layout:
            raise LayoutError(
                f"{variable!r} was used in the constructor of its module, as {variable.path!r}, before its path "
                f"{path!r} was known, which gives it {wanted.sharding_specs}: use it later, or give it layout="
            )
        variable.path = path


def _settle(root: Module, chosen: Callable[[Leaf], bool]) -> None:
    """Tell the *chosen* variables and modules of a tree their paths, and make the values that wait for theirs."""
    start = root._layout_path or ""
    for path, leaf in [(start, root), *_walk(root, start, set())]:
        scope = leaf._layout_scope
        if scope is None or not chosen(leaf):
            continue
        if isinstance(leaf, Module):
            if leaf._layout_path is None:
                object.__setattr__(leaf, "_layout_path", path)
        elif leaf.path is None:
            if not leaf.initialized:
                leaf._make(scope.layout_of(path, len(leaf.shape)))
            leaf.path = path


def _roots(modules: list[Module]) -> list[Module]:
    """Return the modules that no other one holds, in the order in which they were made; the first one of a cycle."""
    held = {id(leaf) for module in modules for _, leaf in _held(module) if leaf is not module}
    roots: list[Module] = []
    seen: set[int] = set()
    for module in sorted(modules, key=lambda module: id(module) in held):
        if id(module) not in seen:
            roots.append(module)
            for _ in _walk(module, "", seen):
                pass
    return roots


_local = threading.local()


def _active() -> list[Scope]:
    """Return the scopes around, the innermost last; those of this thread, as a simulated rank is one."""
    scopes: list[Scope] | None = getattr(_local, "scopes", None)
    if scopes is None:
        scopes = _local.scopes = []
    return scopes


def current_scope() -> Scope | None:
    """Return the innermost scope around, if any. Local."""
    scopes = _active()
    return scopes[-1] if scopes else None


@contextmanager
def lazy_variables(layout_of: LayoutOf) -> Iterator[None]:
    """Return a scope in which variables wait for their paths, of which *layout_of* gives the layouts. Local."""
    outer = current_scope()
    with _entered(Scope(layout_of, [] if outer is None else outer.modules)):
        yield


@contextmanager
def _entered(scope: Scope, *modules: Module) -> Iterator[None]:
    """Make *scope* the innermost one, and finish it at the end, unless it was around already or on an exception."""
    active = _active()
    around, made_before = tuple(active), len(scope.modules)
    active.append(scope)
    scope.modules.extend(modules)
    try:
        yield
        if scope not in around:
            scope.finish(around)
    except BaseException:
        del scope.modules[made_before:]  # a scope around must not finish what was given up
        raise
    finally:
        active.pop()
        if all(other.modules is not scope.modules for other in around):
            scope.modules.clear()
