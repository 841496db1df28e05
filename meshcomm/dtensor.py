"""Distributed tensors: the block of this rank, a layout, and the global shape."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, SupportsIndex

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike, NDArray

from meshcomm import _late, guard
from meshcomm.blocks import Box, block_interval
from meshcomm.collectives import as_array, exact_copy, opaque
from meshcomm.context import default_layout, place_in
from meshcomm.errors import DTypeError, LayoutError, MeshError, ShapeError
from meshcomm.exchange import as_bytes, new_block
from meshcomm.execute import prepare, run_agreed
from meshcomm.groups import Communicator, Place
from meshcomm.layout import Layout
from meshcomm.mesh import Mesh
from meshcomm.plan import as_dtype, as_shape, check_size, plan_relayout

Array = NDArray[Any]
Shape = int | Sequence[int]
Axis = int | tuple[int, ...] | None


class DTensor(NDArrayOperatorsMixin):
    """A global array, divided over the ranks of a mesh as its layout says. Local.

    `local` is the block of this rank, C-contiguous, or None if the rank is outside of the mesh. Made by `distribute`,
    `from_local`, `from_callback`, `zeros`, `ones`, `full`, `empty`, `zeros_like`, `ones_like`, and by `relayout`.
    Operators and NumPy's elementwise functions work on tensors as on arrays, elementwise ``==`` included: see
    :mod:`meshcomm.arithmetic`.
    """

    __array_priority__ = 1000
    __slots__ = ("__weakref__", "dtype", "layout", "local", "partner", "shape")
    __hash__ = None  # type: ignore[assignment]  # as an array, whose == is elementwise

    local: Array | None
    layout: Layout
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    partner: Callable[[], "DTensor | None"] | None
    """The tensor, if it still lives, whose relayout was last found free to overwrite this one."""

    def __init__(self, local: Array | None, layout: Layout, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        _set_local(self, local)
        _set_layout(self, layout)
        _set_shape(self, shape)
        _set_dtype(self, dtype)
        _set_partner(self, None)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a DTensor cannot be given another {name}; change its block in place, or make a new one")

    @property
    def mesh(self) -> Mesh:
        """The mesh of the layout. Local."""
        return self.layout.mesh

    @property
    def ndim(self) -> int:
        """The number of axes. Local."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of the global array. Local."""
        size = 1
        for n in self.shape:
            size *= n
        return size

    @property
    def nbytes(self) -> int:
        """The number of bytes of the global array. Local."""
        return self.size * self.dtype.itemsize

    def copy(self) -> "DTensor":
        """Return a tensor with a copy of the block. Local."""
        local = None if self.local is None else exact_copy(self.local)
        return DTensor(local, self.layout, self.shape, self.dtype)

    @property
    def T(self) -> "DTensor":  # noqa: N802 - NumPy's name
        """The tensor with its axes in reverse order, a copy. Local."""
        return _made("transpose", self)

    def sum(self, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> "DTensor":
        """Return the sum over *axis*, as :func:`meshcomm.arithmetic.sum`. Collective over the mesh."""
        return _made("sum", self, axis, dtype, keepdims)

    def mean(self, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> "DTensor":
        """Return the mean over *axis*, as :func:`meshcomm.arithmetic.mean`. Collective over the mesh."""
        return _made("mean", self, axis, dtype, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> "DTensor":
        """Return the maximum over *axis*, as :func:`meshcomm.arithmetic.max`. Collective over the mesh."""
        return _made("max", self, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> "DTensor":
        """Return the minimum over *axis*, as :func:`meshcomm.arithmetic.min`. Collective over the mesh."""
        return _made("min", self, axis, keepdims)

    def item(self) -> Any:
        """Return the one element as a Python number, if every device holds it. Local.

        ``ShapeError`` if there are more elements, ``LayoutError`` on ranks that do not hold it.
        """
        if self.size != 1:
            raise ShapeError(f"a tensor of shape {self.shape} has {self.size} elements; only one is an item")
        if self.local is None or not self.layout.is_fully_replicated():
            raise LayoutError(
                f"not every rank holds the element of {_text(self)}: use t.local (Local) or t.to_numpy() (Collective)"
            )
        return self.local.item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _late.call("array_ufunc", ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        return _late.call("array_function", func, args, kwargs)

    def to_numpy(self, root: int | None = None) -> Array | None:
        """Return the global array on every rank of the mesh, or on device *root* only. Collective over the mesh.

        None on the other ranks. ``MeshError`` if the mesh has no device *root*.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        ...     return mc.distribute(np.arange(3), rows).to_numpy(root=0)
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [array([0, 1, 2]), None]
        """
        _check_root(root, self.mesh)
        place = place_in(self.mesh)
        if place is None:
            return None
        guard.begin("to_numpy", place.team)
        try:
            return _gathered(self, place) if root is None else _gathered_on(self, place, root)
        finally:
            guard.end()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the block if it is the whole array; refuse otherwise. Local."""
        if self.local is None or not self.layout.is_fully_replicated():
            raise TypeError(
                f"{self!r} is divided over its ranks and cannot become a NumPy array by itself: use t.local for the "
                "block of this rank (Local), or t.to_numpy() for the global array (Collective)"
            )
        if copy is False:
            raise ValueError("a DTensor does not lend its memory to an array; use t.local")
        return np.array(self.local, dtype=dtype)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a DTensor cannot be pickled: its other blocks are on other ranks. Pickle t.local and t.layout, and use "
            "meshcomm.from_local to make it again; or pickle t.to_numpy()"
        )

    def __copy__(self) -> "DTensor":
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> "DTensor":
        return self.copy()

    def __bool__(self) -> NoReturn:
        raise TypeError("the truth of a DTensor is on no single rank: use t.local or t.to_numpy()")

    def __repr__(self) -> str:
        mesh = ", ".join(f"{name}={size}" for name, size in self.mesh.dims)
        specs = ", ".join("+".join(s) if isinstance(s, tuple) else s for s in self.layout.sharding_specs)
        if self.local is None:
            holds = "this rank is outside of the mesh"
        else:
            values = np.array2string(self.local, threshold=100, edgeitems=2, separator=", ").replace("\n", "\n  ")
            holds = f"the block of this rank, {self.local.shape}:\n  {values}"
        return f"DTensor of {self.shape} {self.dtype}, [{specs}] on mesh {mesh}; {holds}"


# What a DTensor itself does not let anybody set, as fast as can be: relayouts of small blocks make many of them.
_set_local, _set_layout, _set_shape, _set_dtype, _set_partner = (
    DTensor.__dict__[name].__set__ for name in ("local", "layout", "shape", "dtype", "partner")
)


def _made(operation: str, tensor: DTensor, *args: Any) -> DTensor:
    """Return what an operation of :mod:`meshcomm.arithmetic` makes of a tensor."""
    result: DTensor = _late.call(operation, tensor, *args)
    return result


def unwrapped(x: Any) -> Any:
    """Return the DTensor that *x* holds as its `value`, as a variable does; else *x* itself. Local."""
    if isinstance(x, DTensor | np.ndarray | np.generic | int | float | complex | list | tuple):
        return x
    value = getattr(x, "value", None)
    return value if isinstance(value, DTensor) else x


def distribute(array: ArrayLike | None, layout: Layout, root: int | None = None) -> DTensor:
    """Return *array* divided as *layout* says. Local; with *root*, Collective over the mesh.

    Every rank passes the whole array, or only device *root* does, which then sends each other device its block.
    ``LayoutError`` if the layout has another rank than the array, ``DTypeError`` for object. Source:
    tf.experimental.dtensor.copy_to_mesh.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     return mc.distribute(np.arange(6).reshape(3, 2), rows).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[0, 1], [2, 3]], [[4, 5]]]
    """
    _check_layout(layout)
    _check_root(root, layout.mesh)
    place = place_in(layout.mesh)
    if root is None:
        whole = _as_array(array)
        _check_rank(layout, whole.shape)
        local = None if place is None else _cut(whole, layout, place.device)
        return DTensor(local, layout, whole.shape, whole.dtype)
    if place is None:
        raise MeshError(
            "ranks outside of the mesh do not learn shape and dtype from root: call distribute on its ranks"
        )
    guard.begin("distribute", place.team)
    try:
        return _scattered(array, layout, place, root)
    finally:
        guard.end()


def from_local(block: ArrayLike | None, layout: Layout, global_shape: Shape | None = None) -> DTensor:
    """Return a tensor whose block on this rank is *block*. Local; without *global_shape* Collective over the mesh.

    A C-contiguous block is wrapped without a copy. It must have the shape that the layout gives this rank:
    ``layout.block_slices(global_shape, mesh.rank)``. Without *global_shape* the ranks agree on the sum of their
    lengths. Replicas are trusted to be equal. ``ShapeError`` if a block does not fit. Ranks outside of the mesh pass
    None and a *global_shape*. Source: tf.experimental.dtensor.pack.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     return mc.from_local(np.full(2 - mesh.rank, mesh.rank), mc.Layout(["x"], mesh)).shape
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [(3,), (3,)]
    """
    _check_layout(layout)
    place = place_in(layout.mesh)
    if place is None:
        if global_shape is None:
            raise ShapeError("a rank outside of the mesh cannot take part in finding the shape: pass global_shape")
        shape = as_shape(global_shape)
        _check_rank(layout, shape)
        return DTensor(None, layout, shape, np.asarray(block).dtype if block is not None else np.dtype(float))
    if global_shape is not None:
        shape = as_shape(global_shape)
        _check_rank(layout, shape)
        local = _as_block(block)
        _check_block(local, layout, shape, place.device)
        return DTensor(local, layout, shape, local.dtype)
    guard.begin("from_local", place.team)
    try:
        return _from_agreed(lambda: block, layout, place)
    finally:
        guard.end()


def from_component(component: Callable[[], Any], layout: Layout) -> DTensor:
    """Return a tensor whose block on this rank is what *component* returns. Collective over the mesh.

    What it raises on one rank, all raise.
    """
    _check_layout(layout)
    place = place_in(layout.mesh)
    if place is None:
        raise ShapeError("a rank outside of the mesh has no component: use from_local with a global_shape there")
    guard.begin("pack", place.team)
    try:
        return _from_agreed(component, layout, place)
    finally:
        guard.end()


def from_callback(
    shape: Shape, dtype: DTypeLike, layout: Layout, fn: Callable[[tuple[slice, ...]], ArrayLike]
) -> DTensor:
    """Return a tensor whose blocks are ``fn(slices)``, the slices of the global array that a rank holds. Local.

    The global array is never made. What *fn* returns is converted to *dtype* if that loses no kind of number.
    ``ShapeError`` if it has not the shape of the slices, ``DTypeError`` if it cannot be converted.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.from_callback(5, float, layout, lambda s: np.arange(5)[s]).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0.0, 1.0, 2.0], [3.0, 4.0]]
    """
    _check_layout(layout)
    lengths, kind, _, place = _described(shape, dtype, layout)
    if place is None:
        return DTensor(None, layout, lengths, kind)
    slices = layout.block_slices(lengths, place.device)
    made = _as_array(fn(slices))
    expected = layout.block_shape(lengths, place.device)
    if made.shape != expected:
        raise ShapeError(f"fn({slices}) must return a block of shape {expected}, not {made.shape}")
    if made.dtype == kind:
        return DTensor(exact_copy(made), layout, lengths, kind)
    try:
        return DTensor(made.astype(kind, order="C", casting="same_kind"), layout, lengths, kind)
    except TypeError as error:
        raise DTypeError(f"fn({slices}) returned {made.dtype}, which does not convert to {kind}: {error}") from None


def empty(shape: Shape, dtype: DTypeLike = float, layout: Layout | None = None) -> DTensor:
    """Return a tensor with blocks of arbitrary content. Local. Without *layout* see `zeros`."""
    lengths, kind, where, place = _described(shape, dtype, layout)
    local = None if place is None else new_block(where.block_shape(lengths, place.device), kind)
    return DTensor(local, where, lengths, kind)


def full(shape: Shape, fill_value: Any, dtype: DTypeLike | None = None, layout: Layout | None = None) -> DTensor:
    """Return a tensor with the scalar *fill_value* everywhere. Local. Without *layout* see `zeros`.

    *dtype* is by default that of *fill_value*. ``ShapeError`` if this is no scalar, ``DTypeError`` if *dtype* cannot
    hold it.
    """
    if np.ndim(fill_value) != 0:
        raise ShapeError(f"fill_value must be a scalar, not an array of shape {np.shape(fill_value)}")
    tensor = empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, layout)
    try:
        value = np.full((), fill_value, tensor.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise DTypeError(f"fill_value {fill_value!r} does not convert to {tensor.dtype}: {error}") from None
    if tensor.local is not None:
        tensor.local[...] = value
    return tensor


def zeros(shape: Shape, dtype: DTypeLike = float, layout: Layout | None = None) -> DTensor:
    """Return a tensor of zeros. Local.

    Without *layout* it is replicated on the mesh of `default_mesh`; ``MeshError`` if there is none.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     print(world.run(lambda: mc.zeros((3,), "i4", layout).local.tolist()))
    [[0, 0], [0]]
    """
    tensor = empty(shape, dtype, layout)
    if tensor.local is not None:
        as_bytes(tensor.local).fill(0)
    return tensor


def ones(shape: Shape, dtype: DTypeLike = float, layout: Layout | None = None) -> DTensor:
    """Return a tensor of ones. Local. Without *layout* see `zeros`."""
    return full(shape, 1, dtype, layout)


def zeros_like(tensor: DTensor) -> DTensor:
    """Return a tensor of zeros with the shape, dtype and layout of *tensor*. Local."""
    return zeros(tensor.shape, tensor.dtype, tensor.layout)


def ones_like(tensor: DTensor) -> DTensor:
    """Return a tensor of ones with the shape, dtype and layout of *tensor*. Local."""
    return ones(tensor.shape, tensor.dtype, tensor.layout)


def _described(
    shape: Shape, dtype: DTypeLike, layout: Layout | None
) -> tuple[tuple[int, ...], np.dtype[Any], Layout, Place | None]:
    """Return the arguments of a constructor, checked, and where this rank is in the mesh."""
    lengths = as_shape(shape)
    if layout is None:
        layout = default_layout(len(lengths))
    _check_layout(layout)
    kind = as_dtype(dtype)
    _check_rank(layout, lengths)
    check_size(lengths, kind)
    return lengths, kind, layout, place_in(layout.mesh)


def _as_array(array: Any) -> Array:
    """Return *array* as a NumPy array that can be divided."""
    if array is None:
        raise ShapeError("the array is None; every rank passes it unless root says which one has it")
    return as_array(array)


def _as_block(block: Any) -> Array:
    """Return *block* as a C-contiguous array, itself if it is one."""
    array = _as_array(block)
    return array.view(np.ndarray) if array.flags.c_contiguous else exact_copy(array)


def _cut(array: Array, layout: Layout, device: int) -> Array:
    """Return a copy of the block of *array* that *device* holds."""
    inside: Any = (..., *layout.block_slices(array.shape, device))  # with ... an array also where nothing is sliced
    block: Array = array[inside]
    return exact_copy(block)


def _check_layout(layout: Any) -> None:
    if not isinstance(layout, Layout):
        raise LayoutError(f"layout must be a Layout, not {type(layout).__name__} ({layout!r})")
    if layout.match_axis is not None:
        raise LayoutError(f"{layout.sharding_specs}: MATCH has no meaning without a tensor to match")


def _check_rank(layout: Layout, shape: tuple[int, ...]) -> None:
    if layout.rank != len(shape):
        raise LayoutError(f"an array of shape {shape} has rank {len(shape)}, but its layout has rank {layout.rank}")


def _check_root(root: Any, mesh: Mesh) -> None:
    if root is None:
        return
    if isinstance(root, bool) or not isinstance(root, (int, np.integer)) or not 0 <= root < mesh.size:
        raise MeshError(f"root must be a device of the mesh, 0 to {mesh.size - 1}, not {root!r}")


def _check_block(local: Array, layout: Layout, shape: tuple[int, ...], device: int) -> None:
    expected = layout.block_shape(shape, device)
    if local.shape != expected:
        raise ShapeError(
            f"device {device} holds a block of shape {expected} of the global shape {shape} in layout "
            f"{layout.sharding_specs}, but the block given has shape {local.shape}"
        )


def place_text(mesh: Mesh) -> str:
    """Return where *mesh* is, in words that ranks can compare. Local."""
    return f"mesh {', '.join(f'{name}={size}' for name, size in mesh.dims)} over {mesh.ranks}"


def _text(tensor: DTensor) -> str:
    return f"{tensor.shape} {tensor.dtype} in {tensor.layout.sharding_specs} on {place_text(tensor.mesh)}"


def _by_device(communicator: Communicator, place: Place, mesh: Mesh, message: bytes) -> list[bytes]:
    """Return the message of every device of the mesh, in the order of devices. Collective over the mesh."""
    messages = communicator.allgather(message)
    at = dict(zip(place.team.ranks, messages, strict=True))
    return [at[rank] for rank in mesh.ranks]


def _member(place: Place, mesh: Mesh, device: int) -> int:
    """Return the place in the team of *device*."""
    return place.team.ranks.index(mesh.ranks[device])


def _from_agreed(block: Callable[[], Any], layout: Layout, place: Place) -> DTensor:
    """Return the tensor of the global shape that all blocks add up to. Collective over the mesh."""
    mesh, error, local = layout.mesh, None, np.empty(0)
    try:
        local = _as_block(block())
        _check_rank(layout, local.shape)
    except Exception as problem:
        error = problem
    call = f"from_local of {local.dtype} in {layout.sharding_specs} on {place_text(mesh)}"
    guard.agree(place.team, call, error)
    lengths = np.array(local.shape, dtype=np.int64).tobytes()
    gathered = _by_device(place.team.everyone.communicator(), place, mesh, lengths)
    shapes = [tuple(np.frombuffer(text, dtype=np.int64).tolist()) for text in gathered]
    shape = tuple(_agreed_length(layout, axis, [s[axis] for s in shapes]) for axis in range(layout.rank))
    return DTensor(local, layout, shape, local.dtype)


def _agreed_length(layout: Layout, axis: int, lengths: list[int]) -> int:
    """Return the length of a global axis from the lengths of all blocks; ``ShapeError`` if they do not fit."""
    parts = layout.num_shards(axis)
    numbers = [layout.block_numbers(device)[axis] for device in range(layout.mesh.size)]
    n = sum(dict(zip(numbers, lengths, strict=True)).values())
    for device, (number, length) in enumerate(zip(numbers, lengths, strict=True)):
        start, stop = block_interval(n, parts, number)
        if length != stop - start:
            raise ShapeError(
                f"the blocks along axis {axis} add up to {n} elements, of which device {device} must hold "
                f"{stop - start} (numpy.array_split), but its block has {length}"
            )
    return n


def _scattered(array: Any, layout: Layout, place: Place, root: int) -> DTensor:
    """Return the tensor that device *root* has the array of; it sends block by block. Collective over the mesh."""
    mesh, team = layout.mesh, place.team
    whole, error = np.empty(0), None
    if place.device == root:
        try:
            whole = _as_array(array)
            _check_rank(layout, whole.shape)
        except Exception as problem:
            error = problem
    call = f"distribute from device {root} in {layout.sharding_specs} on {place_text(mesh)}"
    guard.agree(team, call, error)
    communicator = team.everyone.communicator()
    shape, dtype = _described_by_root(communicator, whole, _member(place, mesh, root))
    if place.device == root:
        for device in range(mesh.size):
            if device != root:
                communicator.send(as_bytes(_cut(whole, layout, device)), _member(place, mesh, device))
        local = _cut(whole, layout, root)
    else:
        local = new_block(layout.block_shape(shape, place.device), dtype)
        communicator.receive(as_bytes(local), _member(place, mesh, root))
    return DTensor(local, layout, shape, dtype)


def _described_by_root(communicator: Communicator, whole: Array, root: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of *whole* as the rank *root* has it. Collective."""
    mine = pickle.dumps((whole.shape, whole.dtype)) if communicator.rank == root else b""
    shape, dtype = pickle.loads(communicator.allgather(mine)[root])
    return shape, dtype


def _gathered(tensor: DTensor, place: Place) -> Array:
    target = Layout.replicated(tensor.mesh, tensor.ndim)
    key = ("to_numpy", tensor.layout, tensor.shape, tensor.dtype)
    machine = place.team.machine
    whole: Array = run_agreed(
        place,
        key,
        lambda: f"to_numpy of {_text(tensor)}",
        lambda: prepare(plan_relayout(tensor.shape, tensor.dtype, tensor.layout, target, None, machine), place),
        tensor.local,
    )
    return whole


def _gathered_on(tensor: DTensor, place: Place, root: int) -> Array | None:
    """Return the global array on device *root*: one replica of each block sends it there. Collective."""
    mesh, layout, shape = tensor.mesh, tensor.layout, tensor.shape
    guard.agree(place.team, f"to_numpy on device {root} of {_text(tensor)}")
    communicator = place.team.everyone.communicator()
    assert tensor.local is not None
    # Root serves itself if it can; each other block comes from the first device that holds it.
    senders: dict[Box, int] = {}
    for device in (root, *range(mesh.size)):
        senders.setdefault(layout.block_box(shape, device), device)
    if place.device != root:
        if senders[layout.block_box(shape, place.device)] == place.device:
            communicator.send(as_bytes(tensor.local), _member(place, mesh, root))
        return None
    whole = np.empty(shape, tensor.dtype)
    for device in senders.values():
        block = tensor.local
        if device != root:
            block = np.empty(layout.block_shape(shape, device), tensor.dtype)
            communicator.receive(as_bytes(block), _member(place, mesh, device))
        opaque(whole)[layout.block_slices(shape, device)] = opaque(block)
    return whole
