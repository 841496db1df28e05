"""Functions that make tensors: from arrays, from blocks, from a function, or filled with one value."""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.core._arguments import as_array, as_dtype, as_shape, check_size, counted, quote, refuse_masked
from meshcomm.core._tracing import is_traced, traceable
from meshcomm.core._types import Array, DType, Shape, ShapeLike
from meshcomm.core.arrays.compile import no_memory
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, check_root, gather_by_device, member
from meshcomm.core.arrays.moving import RELAYOUT
from meshcomm.core.layouts.coordinates import single_index
from meshcomm.core.layouts.dtype_text import dtype_of_text, dtype_text
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import UNSHARDED, Spec
from meshcomm.core.layouts.mesh import Mesh, one_device_mesh
from meshcomm.core.layouts.mistakes import no_layout, such_as
from meshcomm.core.layouts.partition import Runs, local_indices
from meshcomm.core.layouts.specs import CutSpec
from meshcomm.core.memory.blocks import as_bytes, new_block
from meshcomm.core.memory.copies import exact_copy, opaque
from meshcomm.core.ranks.calls import agree_on, collective, exchanging
from meshcomm.core.ranks.communicator import as_json_text
from meshcomm.core.ranks.meshes import default_layout, location_in, mesh_description, required_default_mesh
from meshcomm.core.ranks.rank_sets import Location
from meshcomm.errors import DTypeError, LayoutError, MeshError, ShapeError

T = TypeVar("T")


def distribute(array: ArrayLike | None, layout: Layout, root: int | None = None) -> DTensor:
    """Return *array* as a tensor in *layout*. With *root*, Collective over the mesh.

    Without *root* every rank passes the whole array, the same one, and nothing is sent: nobody checks that the arrays
    are equal. Random ones are if all ranks seed them alike. With *root* only that device has the array, and sends each
    other device its block. ``LayoutError`` if the layout has another number of axes than the array, ``DTypeError`` if
    its dtype is object. Source: tf.experimental.dtensor.copy_to_mesh.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     return mc.distribute(np.arange(6).reshape(3, 2), rows).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[0, 1], [2, 3]], [[4, 5]]]
    """
    _check_layout(layout)
    if root is None:
        location = location_in(layout.mesh)
        global_array = _as_array(array)
        _check_fits(layout, global_array.shape)
        local = None if location is None else _block_copy(global_array, layout, location.device)
        return DTensor(local, layout, global_array.shape, global_array.dtype)
    with collective("distribute", layout.mesh) as location:
        check_root(root, layout.mesh)
        if location is None:
            raise MeshError(
                "ranks outside of the mesh do not learn shape and dtype from root: call distribute on its ranks only"
            )
        return _scatter(array, layout, location, root)


def from_local(
    block: ArrayLike | None,
    layout: Layout | Literal["cuts"],
    global_shape: ShapeLike | None = None,
    *,
    mesh: Mesh | None = None,
    sharding_specs: Sequence[Spec] | None = None,
) -> DTensor:
    """Return a tensor from the *block* of each rank. Without *global_shape*, Collective over the mesh.

    A C-contiguous block is wrapped without a copy. It must have the shape that the layout gives this rank:
    ``layout.block_slices(global_shape, mesh.rank)``. Without *global_shape* the ranks add up the lengths of their
    blocks. Nobody checks that replicas are equal. ``ShapeError`` if a block does not fit. Ranks outside of the mesh
    pass None and a *global_shape*. Source: tf.experimental.dtensor.pack.

    Parameters
    ----------
    block: block of this rank
    layout: layout of the tensor; or ``"cuts"``, for blocks of any lengths: the ranks gather their shapes, and the axes
        are cut at the cumulative lengths (`Cuts`)
    global_shape: shape of the tensor, if it is known
    mesh: for ``"cuts"``, the mesh; by default the one of `default_mesh`
    sharding_specs: for ``"cuts"``, the mesh dimensions that shard each axis; by default all shard the first one

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     return mc.from_local(np.full(2 - mesh.rank, mesh.rank), mc.Layout(["x"], mesh)).shape
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [(3,), (3,)]
    """
    if isinstance(layout, str) and layout == "cuts":
        return _from_cuts(block, mesh or required_default_mesh("mesh="), sharding_specs, global_shape)
    _check_layout(layout)
    if is_traced(block):
        return of_block(block, layout, global_shape)
    if mesh is not None or sharding_specs is not None:
        raise LayoutError('from_local takes mesh and sharding_specs with layout="cuts" only: a Layout has its own')
    location = location_in(layout.mesh)
    if location is None:
        if global_shape is None:
            raise ShapeError("a rank outside of the mesh has no block to find the shape from: pass global_shape")
        shape = as_shape(global_shape)
        _check_fits(layout, shape)
        return DTensor(None, layout, shape, _as_array(block).dtype if block is not None else np.dtype(float))
    if global_shape is not None:
        shape = as_shape(global_shape)
        _check_ndim(layout, shape)
        local = _as_block(block)
        _check_block(local, layout, shape, location.device)
        return DTensor(local, layout, shape, local.dtype)
    with collective("from_local", layout.mesh):
        return _from_blocks(lambda: block, layout, location)


@traceable()
def of_block(block: ArrayLike | None, layout: Layout, global_shape: ShapeLike | None = None) -> DTensor:
    """Return a tensor from the *block* of each rank, as `from_local` does; autograd can follow it."""
    return from_local(block, layout, global_shape)


def from_component(component: Callable[[], ArrayLike], layout: Layout) -> DTensor:
    """Return a tensor from the block that *component* returns on each rank. Collective over the mesh.

    If it raises an error on one rank, all ranks raise that.
    """
    _check_layout(layout)
    location = location_in(layout.mesh)
    if location is None:
        raise ShapeError("a rank outside of the mesh has no component: use from_local with a global_shape there")
    with collective("pack", layout.mesh):
        return _from_blocks(component, layout, location)


def from_callback(
    shape: ShapeLike, dtype: DTypeLike, layout: Layout, fn: Callable[[tuple[slice, ...]], ArrayLike]
) -> DTensor:
    """Return a tensor from ``fn(slices)``, called on each rank with the slices of the global array that it holds.

    The global array is never made. In a layout with `Cyclic` axes a rank calls *fn* once for each of its boxes, in the
    order of ``layout.blocks``.

    Parameters
    ----------
    shape, dtype: shape and dtype of the global array
    layout: layout of the tensor
    fn: function from slices to their block; it is converted to *dtype* by NumPy's ``same_kind`` rule

    ``ShapeError`` if the block has another shape than the slices, ``DTypeError`` if it does not convert to *dtype*.
    An error of *fn* is raised on its rank only.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.from_callback(5, float, layout, lambda s: np.arange(5)[s]).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0.0, 1.0, 2.0], [3.0, 4.0]]
    """
    _check_layout(layout)
    if not callable(fn):
        raise TypeError(f"fn must be a function of slices, not {quote(fn)}")
    lengths, np_dtype, _, location = _checked_arguments(shape, dtype, layout)
    if location is None:
        return DTensor(None, layout, lengths, np_dtype)
    box = layout.block_box(lengths, location.device)
    if not any(isinstance(span, Runs) for span in box):
        return DTensor(_block_by_function(fn, tuple(slice(*s) for s in box), np_dtype), layout, lengths, np_dtype)
    block = _new_block(layout, lengths, np_dtype, location.device)
    for slices in layout.blocks(lengths, location.device):
        starts = [int(local_indices(span, single_index(run.start))[0]) for span, run in zip(box, slices, strict=True)]
        local_slices = tuple(slice(n, n + run.stop - run.start) for n, run in zip(starts, slices, strict=True))
        opaque(block)[local_slices] = opaque(_block_by_function(fn, slices, np_dtype))
    return DTensor(block, layout, lengths, np_dtype)


def fromfunction(
    function: Callable[..., ArrayLike], shape: ShapeLike, layout: Layout, *, dtype: DTypeLike = float
) -> DTensor:
    """Return a tensor whose elements are a function of their indices, as numpy.fromfunction makes arrays.

    Each rank calls the function with the indices of its block only, in arrays of *dtype* that broadcast.

    Parameters
    ----------
    function: function of an array for each axis; its result broadcasts to the shape of the block
    shape: shape of the global array
    layout: layout of the tensor
    dtype: dtype of the indices

    The tensor has the dtype of the function's result. An error of the function is raised on its rank only.
    Source: numpy.fromfunction.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     layout = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     return mc.fromfunction(lambda i, j: i == j, (3, 2), layout, dtype=int).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[True, False], [False, True]], [[False, False]]]
    """
    lengths = as_shape(shape)

    def make_block(slices: tuple[slice, ...]) -> Array:
        block = np.asarray(function(*(x.astype(dtype) for x in np.ogrid[slices])))
        return np.broadcast_to(block, [x.stop - x.start for x in slices])

    result_dtype = np.asarray(function(*np.zeros((len(lengths), *(1,) * len(lengths)), dtype))).dtype
    return from_callback(lengths, result_dtype, layout, make_block)


def _block_by_function(fn: Callable[[tuple[slice, ...]], ArrayLike], slices: tuple[slice, ...], dtype: DType) -> Array:
    """Return ``fn(slices)`` in *dtype*, as a new array."""
    block, expected_shape = _as_array(fn(slices)), tuple(run.stop - run.start for run in slices)
    if block.shape != expected_shape:
        raise ShapeError(f"fn({slices}) must return a block of shape {expected_shape}, not {block.shape}")
    if block.dtype == dtype:
        return exact_copy(block)
    try:
        return block.astype(dtype, order="C", casting="same_kind")
    except TypeError as error:
        raise DTypeError(f"fn({slices}) returned {block.dtype}, which does not convert to {dtype}: {error}") from None


def empty(shape: ShapeLike, dtype: DTypeLike = float, layout: Layout | None = None) -> DTensor:
    """Return a tensor with any content. Without *layout* see `zeros`.

    >>> import meshcomm as mc
    >>> layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
    >>> mc.empty(3, int, layout).shape
    (3,)
    """
    lengths, np_dtype, checked_layout, location = _checked_arguments(shape, dtype, layout)
    local = None if location is None else _new_block(checked_layout, lengths, np_dtype, location.device)
    return DTensor(local, checked_layout, lengths, np_dtype)


def full(
    shape: ShapeLike,
    fill_value: ArrayLike | DTensor,
    dtype: DTypeLike | None = None,
    layout: Layout | None = None,
) -> DTensor:
    """Return a tensor with the scalar *fill_value* everywhere.

    Parameters
    ----------
    shape: shape of the global array
    fill_value: a number, another scalar of NumPy, or a tensor without axes
    dtype: dtype of the tensor, by default that of *fill_value*
    layout: layout of the tensor, by default that of `zeros`

    ``ShapeError`` if *fill_value* is no scalar, ``DTypeError`` if *dtype* cannot hold it.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     print(world.run(lambda: mc.full((3,), 7, "i4", layout).local.tolist()))
    [[7, 7], [7]]
    """
    refuse_masked(fill_value)
    if np.ndim(fill_value) != 0:
        raise ShapeError(f"fill_value must be a scalar, not an array of shape {np.shape(fill_value)}")
    if isinstance(fill_value, DTensor):
        value = np.zeros((), fill_value.dtype) if not fill_value._has_block else fill_value._block
        return full(shape, value, dtype, layout)
    tensor = empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, layout)
    try:
        value = np.full((), fill_value, tensor.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise DTypeError(f"fill_value {quote(fill_value)} does not convert to {tensor.dtype}: {error}") from None
    if tensor._has_block:
        tensor._block[...] = value
    return tensor


def zeros(shape: ShapeLike, dtype: DTypeLike = float, layout: Layout | None = None) -> DTensor:
    """Return a tensor of zeros.

    Without *layout* it is replicated on the mesh of `default_mesh`; ``MeshError`` if there is none.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     print(world.run(lambda: mc.zeros((3,), "i4", layout).local.tolist()))
    [[0, 0], [0]]
    """
    tensor = empty(shape, dtype, layout)
    if tensor._has_block:
        as_bytes(tensor._block).fill(0)
    return tensor


def ones(shape: ShapeLike, dtype: DTypeLike = float, layout: Layout | None = None) -> DTensor:
    """Return a tensor of ones. Without *layout* see `zeros`.

    >>> import meshcomm as mc
    >>> layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
    >>> mc.ones(3, int, layout).local
    array([1, 1, 1])
    """
    return full(shape, 1, dtype, layout)


def zeros_like(tensor: DTensor) -> DTensor:
    """Return a tensor of zeros with the shape, dtype and layout of *tensor*.

    >>> import meshcomm as mc
    >>> layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
    >>> mc.zeros_like(mc.ones(3, int, layout)).local
    array([0, 0, 0])
    """
    like = as_tensor("zeros_like", tensor)
    return zeros(like.shape, like.dtype, like.layout)


def ones_like(tensor: DTensor) -> DTensor:
    """Return a tensor of ones with the shape, dtype and layout of *tensor*.

    >>> import meshcomm as mc
    >>> layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
    >>> mc.ones_like(mc.zeros(3, int, layout)).local
    array([1, 1, 1])
    """
    like = as_tensor("ones_like", tensor)
    return ones(like.shape, like.dtype, like.layout)


def _checked_arguments(
    shape: ShapeLike, dtype: DTypeLike, layout: Layout | None
) -> tuple[Shape, DType, Layout, Location | None]:
    """Return the arguments after their checks, and the location of this rank in the mesh."""
    if isinstance(dtype, Layout):
        raise DTypeError(
            f"the dtype is {quote(dtype)}, a Layout: the dtype comes before the layout, or write layout=layout"
        )
    lengths = as_shape(shape)
    if layout is None:
        layout = default_layout(len(lengths))
    _check_layout(layout)
    np_dtype = as_dtype(dtype)
    _check_fits(layout, lengths)
    check_size(lengths, np_dtype)
    return lengths, np_dtype, layout, location_in(layout.mesh)


def _as_array(array: ArrayLike | None) -> Array:
    """Return *array* as a NumPy array that can be sharded."""
    if array is None:
        raise ShapeError(
            "the array is None; every rank passes it unless root says which one has it, and a callback returns "
            "its block"
        )
    return as_array(array)


def _as_block(block: ArrayLike | None) -> Array:
    """Return *block* as a C-contiguous array, itself if it is one."""
    array = _as_array(block)
    if not array.flags.c_contiguous:
        return exact_copy(array)
    # Not a view of an array: if a program resizes the array, an exchange sees that, but a view would lose its memory.
    return array if type(array) is np.ndarray else array.view(np.ndarray)


def _new_block(layout: Layout, shape: Shape, dtype: DType, device: int) -> Array:
    """Return a new block of *device*; ``MemoryError`` if there is no memory for it."""
    try:
        return new_block(layout.block_shape(shape, device), dtype)
    except MemoryError:
        raise no_memory(layout, shape, dtype, device) from None


def _block_copy(array: Array, layout: Layout, device: int) -> Array:
    """Return a copy of the block of *array* that *device* holds."""
    return exact_copy(cut_out(array, layout.block_box(array.shape, device)))


def _check_layout(layout: object) -> None:
    if not isinstance(layout, Layout):
        raise no_layout("layout must be a Layout", layout)
    if layout.match_axis is not None:
        raise LayoutError(f"{layout.specs_text}: MATCH has no meaning without a tensor to match")


def _check_fits(layout: Layout, shape: Shape) -> None:
    """Raise unless *layout* can be that of an array of *shape*."""
    _check_ndim(layout, shape)
    layout.check_fits(shape)


def _check_ndim(layout: Layout, shape: Shape) -> None:
    if layout.ndim != len(shape):
        raise LayoutError(
            f"an array of shape {shape} has {counted(len(shape), 'axis')}, but its layout is for {layout.ndim}"
            + such_as(layout, len(shape))
        )


def _check_block(local: Array, layout: Layout, shape: Shape, device: int) -> None:
    expected_shape = _block_shape(layout, shape, device)
    if local.shape != expected_shape:
        raise ShapeError(
            f"device {device} holds a block of shape {expected_shape} of the global shape {shape} in layout "
            f"{layout.specs_text}, but the block given has shape {local.shape}"
        )


@lru_cache(maxsize=1024)  # programs wrap their blocks in every turn of a loop
def _block_shape(layout: Layout, shape: Shape, device: int) -> Shape:
    return layout.block_shape(shape, device)


def _from_blocks(get_block: Callable[[], ArrayLike | None], layout: Layout, location: Location) -> DTensor:
    """Return the tensor that consists of the blocks of all ranks. Collective over the mesh."""

    def checked_block() -> Array:
        local = _as_block(get_block())
        _check_ndim(layout, local.shape)
        return local

    local, shapes = _gather_shapes(checked_block, layout.sharding_specs, layout.mesh, location)
    return DTensor(local, layout, _global_shape(layout, shapes), local.dtype)


def _from_cuts(
    block: ArrayLike | None, mesh: Mesh, specs: Sequence[Spec] | None, global_shape: ShapeLike | None
) -> DTensor:
    """Return the tensor of blocks of any lengths. Collective over the mesh."""

    def checked_block() -> Array:
        local = _as_block(block)
        if specs is None and local.ndim == 0:
            raise ShapeError('from_local with layout="cuts" needs blocks with an axis to cut, not a scalar')
        if specs is not None:
            _check_ndim(Layout(specs, mesh), local.shape)
        return local

    with collective("from_local", mesh) as location:
        if global_shape is not None or location is None:
            raise ShapeError(
                'from_local with layout="cuts" finds the global shape from the blocks of the mesh\'s ranks'
            )
        local, shapes = _gather_shapes(checked_block, None if specs is None else ["cuts", *specs], mesh, location)
        axes = list(specs) if specs is not None else [tuple(mesh.dim_names)] + [UNSHARDED] * (local.ndim - 1)
        layout = Layout.from_blocks(shapes, axes, mesh)
        return DTensor(local, layout, _global_shape(layout, shapes), local.dtype)


def _gather_shapes(
    get_block: Callable[[], Array], specs: object, mesh: Mesh, location: Location
) -> tuple[Array, list[tuple[int, ...]]]:
    """Return the block of this rank, and the shapes of the blocks of all devices. Collective over the mesh."""

    def call_text(local: Array) -> str:
        description = f"cuts along the first of {counted(local.ndim, 'axis')}" if specs is None else specs
        return f"from_local of {local.dtype} in {description} on {mesh_description(mesh)}"

    with exchanging(location.rank_set):
        local = agree_on(location.rank_set, call_text, get_block)
        lengths = np.array(local.shape, dtype=np.int64).tobytes()
        gathered_lengths = gather_by_device(location.rank_set.everyone.communicator(), location, mesh, lengths)
    return local, [tuple(np.frombuffer(data, dtype=np.int64).tolist()) for data in gathered_lengths]


def _global_shape(layout: Layout, shapes: Sequence[Shape]) -> Shape:
    """Return the global shape from the shapes of all blocks; ``ShapeError`` if they do not fit."""
    return tuple(_global_length(layout, axis, [shape[axis] for shape in shapes]) for axis in range(layout.ndim))


def _global_length(layout: Layout, axis: int, lengths: list[int]) -> int:
    """Return the length of a global axis from the lengths of all blocks; ``ShapeError`` if they do not fit."""
    numbers = [layout.block_numbers(device)[axis] for device in range(layout.mesh.size)]
    first_devices: dict[int, int] = {}  # device of each block
    for device, number in enumerate(numbers):
        other = first_devices.setdefault(number, device)
        if lengths[device] != lengths[other]:
            raise ShapeError(
                f"devices {other} and {device} hold the same elements along axis {axis}, but their blocks have "
                f"{lengths[other]} and {lengths[device]} there"
            )
    n = sum(lengths[device] for device in first_devices.values())
    names = layout.axes[axis]
    expected_lengths = layout.cut(axis, n).lengths(np.array(numbers, dtype=np.intp))
    for device, (expected_length, length) in enumerate(zip(expected_lengths.tolist(), lengths, strict=True)):
        if length != expected_length:
            rule = names if isinstance(names, CutSpec) else "numpy.array_split"
            raise ShapeError(
                f"the blocks along axis {axis} add up to {counted(n, 'element')}, of which device {device} must hold "
                f'{expected_length} ({rule}), but its block has {length}; layout="cuts" takes blocks of any lengths'
            )
    return n


def _scatter(array: ArrayLike | None, layout: Layout, location: Location, root: int) -> DTensor:
    """Return *array* of device *root* as a tensor; *root* sends each device its block. Collective over the mesh."""
    mesh, rank_set = layout.mesh, location.rank_set
    global_array = np.empty(0)

    def describe() -> tuple[Shape, str]:
        nonlocal global_array
        if array is None:
            raise ShapeError(f"the array is None, but this device, {root}, is the root and must pass the array")
        global_array = _as_array(array)
        _check_fits(layout, global_array.shape)
        return global_array.shape, dtype_text(global_array.dtype)

    call = f"distribute from device {root} in {layout.specs_text} on {mesh_description(mesh)}"
    with exchanging(rank_set):
        shape_list, text_of_dtype = broadcast_from_root(root, describe, call, mesh, location)
        shape = tuple(shape_list)

        def allocate_blocks() -> tuple[Array, Array | None]:  # a rank may lack the memory, or the module of the dtype
            target_block = _new_block(layout, shape, dtype_of_text(text_of_dtype), location.device)
            return target_block, np.ascontiguousarray(global_array) if location.device == root else None

        target_block, source_block = agree_on(rank_set, f"{call}: {shape} {text_of_dtype}", allocate_blocks)
    root_layout = Layout.replicated(one_device_mesh(mesh, root), len(shape))
    key = "distribute", shape, target_block.dtype, root_layout, layout, None, None
    RELAYOUT("distribute", (root_layout.mesh, mesh), key, (key,), (source_block, target_block))
    return DTensor(target_block, layout, shape, target_block.dtype)


def array_text(array: Array) -> str:
    """Return the text by which ranks compare an array that all of them have.

    It has two checksums of the bytes, which find mistakes and take less time than a cryptographic digest.
    """
    data = as_bytes(np.ascontiguousarray(array))
    words = data[: len(data) // 8 * 8].view("<u8")
    digest = f"{crc32(data.data):08x}{int(words.sum(dtype=words.dtype)):016x}"
    return f"a plain array of {array.shape} {array.dtype} with bytes {digest}"


def broadcast_from_root(root: int, look: Callable[[], T], call: str, mesh: Mesh, location: Location) -> T:
    """Return the result of *look* on device *root*, as JSON holds it: tuples become lists. Collective over the mesh.

    All ranks raise the error that *look* raises there; ``TypeError`` if JSON cannot hold its result.

    Parameters
    ----------
    root: number of the device that calls *look*
    look: function without arguments; JSON can hold its result
    call: text of the call, which the ranks compare first
    mesh: mesh of *root*
    location: location of this rank in the mesh
    """
    with exchanging(location.rank_set):
        text = agree_on(location.rank_set, call, lambda: as_json_text(look() if location.device == root else None))
        texts = location.rank_set.everyone.communicator().allgather_texts(text)
        return json.loads(texts[member(location, mesh, root)])
