"""Tensors made of blocks, without communication. A rank outside of the mesh has no block, and takes no part."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.core._types import Array, DType, Indices, Shape
from meshcomm.core.arrays._recipes import Call, OnBlocks
from meshcomm.core.arrays._storage import about_to_write, refresh
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.memory.copies import contiguous
from meshcomm.errors import ShapeError

R = TypeVar("R")


def make(block: Array | None, layout: Layout, shape: Shape, dtype: DType) -> DTensor:
    """Return the tensor with this local *block*.

    Parameters
    ----------
    block: block of this rank, in C order, unchecked; None outside of the mesh of *layout*
    layout, shape, dtype: layout, shape and dtype of the global array, the same on all ranks
    """
    return DTensor(block, layout, shape, dtype)


def mapped(
    function: Callable[..., ArrayLike],
    tensor: DTensor,
    *others: DTensor,
    layout: Layout | None = None,
    shape: Shape | None = None,
    dtype: DType | None = None,
) -> DTensor:
    """Return the tensor whose blocks are *function* of the blocks of *tensor*.

    On a rank outside of the mesh the function is not called. A block that is not in C order is copied.

    Parameters
    ----------
    function: function from the block of *tensor*, and those of the *others*, to the new block
    tensor: tensor whose layout, shape and dtype are the defaults
    others: tensors in layouts that fit, as `relaid` and `aligned_blocks` make them
    layout, shape, dtype: layout, shape and dtype of the result, by default those of *tensor*

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return mapped(lambda block: block * 10, t).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0, 10], [20, 30]]
    """
    return DTensor(
        on_blocks(lambda *blocks: contiguous(np.asarray(function(*blocks))), tensor, *others),
        tensor.layout if layout is None else layout,
        tensor.shape if shape is None else shape,
        tensor.dtype if dtype is None else dtype,
    )


def mapping(
    function: Callable[..., ArrayLike],
    tensor: DTensor,
    *others: DTensor,
    layout: Layout | None = None,
    shape: Shape | None = None,
    dtype: DType | None = None,
    warns_at_program: bool = False,
    write: Callable[..., object] | None = None,
) -> Call:
    """Return a call that does what `mapped` does, when it is run; *function* may depend on the blocks only.

    Other arguments are those of `mapped`.

    Parameters
    ----------
    warns_at_program: whether NumPy's warnings in *function* must name the line of the program
    write: does the same to pieces of the blocks, and writes to *out*; without it the call runs at once
    """
    spec = TensorSpec(
        tensor.layout if layout is None else layout,
        tensor.shape if shape is None else shape,
        tensor.dtype if dtype is None else dtype,
    )
    return Call(OnBlocks(function, spec, warns_at_program=warns_at_program, write=write), (tensor, *others))


def map_to_new(
    fill: Callable[..., object],
    tensor: DTensor,
    *others: DTensor,
    layout: Layout | None = None,
    shape: Shape | None = None,
    dtype: DType | None = None,
) -> DTensor:
    """Return the tensor whose new block *fill* writes; it is not called for a block without elements.

    Other arguments are those of `mapped`.

    Parameters
    ----------
    fill: function that takes the new block, which is in shared memory, and those of *tensor* and *others*

    >>> import numpy as np, meshcomm as mc
    >>> t = mc.ones(2, int, mc.Layout(["x"], mc.create_mesh([("x", 1)])))
    >>> map_to_new(lambda new, block: np.divide(block, 4, out=new), t, dtype=np.dtype(float)).local.tolist()
    [0.25, 0.25]
    """
    new_layout, new_shape = tensor.layout if layout is None else layout, tensor.shape if shape is None else shape
    new_dtype = tensor.dtype if dtype is None else dtype

    def make_block(*blocks: Array) -> Array:
        block = new_block(new_layout.block_shape(new_shape), new_dtype)
        if block.size:
            fill(block, *blocks)
        return block

    return mapped(make_block, tensor, *others, layout=new_layout, shape=new_shape, dtype=new_dtype)


def complex_of(components: Sequence[DTensor], dtype: DType) -> DTensor:
    """Return the complex tensor of a real and an imaginary tensor in one layout."""

    def join(out: Array, real: Array, imaginary: Array) -> None:
        out.real, out.imag = real, imaginary

    return map_to_new(join, *components, dtype=dtype)


def on_blocks(function: Callable[..., R], tensor: DTensor, *others: DTensor) -> R | None:
    """Return *function* of the local blocks of tensors on one mesh; None outside of it, without a call.

    If a tensor is a stale view, this is Collective: it updates the view.

    >>> import meshcomm as mc
    >>> t = mc.zeros(3, int, mc.Layout(["x"], mc.create_mesh([("x", 1)])))
    >>> on_blocks(len, t)
    3
    """
    refresh([tensor, *others])
    return None if not tensor._has_block else function(tensor._block, *(other._block for other in others))


def map_into(function: Callable[..., object], tensor: DTensor, *others: DTensor) -> DTensor:
    """Let *function* overwrite the block of *tensor*, and return *tensor*. It takes that block and those of *others*.

    Collective for a view whose elements had to move: they are written back.

    >>> import numpy as np, meshcomm as mc
    >>> t = mc.ones(2, int, mc.Layout(["x"], mc.create_mesh([("x", 1)])))
    >>> map_into(lambda block: np.negative(block, out=block), t).local.tolist()
    [-1, -1]
    """
    refresh(others)
    blocks = [other._block for other in others]
    about_to_write(tensor)
    if tensor._has_block:
        function(tensor._block, *blocks)
    tensor.written()
    return tensor


def indices_along(layout: Layout, shape: Shape, axis: int) -> Indices:
    """Return the global indices along *axis* that this rank holds, in a shape that broadcasts with its block."""
    return layout.global_indices(shape, None, axis).reshape([-1 if a == axis else 1 for a in range(len(shape))])


def on_device(mesh: Mesh, function: Callable[[int], R]) -> R | None:
    """Return *function* of the device of this rank; None outside of *mesh*, without a call.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     print(world.run(lambda: on_device(mc.create_mesh([("x", 1)]), str)))
    ['0', None]
    """
    device = mesh.rank
    return None if device is None else function(device)


def refuse_outside(name: str, mesh: Mesh, unknown: str) -> None:
    """Raise ``ShapeError`` on a rank outside of *mesh*, which cannot know *unknown*; *name* is the operation.

    >>> refuse_outside("f", Mesh([0], [("x", 1)]), "how many elements there are")  # this rank is in it
    """
    if mesh.rank is None:
        raise ShapeError(f"{name}: a rank outside of the mesh cannot know {unknown}")


def as_sharded(array: Array, layout: Layout) -> DTensor:
    """Return a tensor of an *array* that all ranks have; its blocks are views of the array where possible.

    >>> import numpy as np, meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     print(world.run(lambda: as_sharded(np.arange(3), layout).local.tolist()))
    [[0, 1], [2]]
    """
    block = on_device(layout.mesh, lambda device: cut_out(array, layout.block_box(array.shape, device)))
    return make(block, layout, array.shape, array.dtype)
