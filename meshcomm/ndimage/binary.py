"""Binary morphology: erosions and dilations, once, several times, or until nothing changes.

Each iteration needs ghosts around the blocks, and one exchange of them. Iterating until nothing changes needs fewer
exchanges: SciPy iterates on each block with constant ghosts until the block stays the same, and only then are ghosts
exchanged. This is correct for structures with a set centre: elements then change in one direction only, and the final
state does not depend on their order. Other structures need an exchange for each iteration.

Arguments and values are SciPy's. The result is a tensor of booleans in the layout of *input*, or *output*. All are
Collective over the mesh of *input* if an axis of the structure is sharded. ``LayoutError`` for plain arrays and for
`Cyclic` axes.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import mapped, on_blocks
from meshcomm.blocks.reduce import reduce_shares
from meshcomm.blocks.small import allgather_array, compare_call
from meshcomm.core._arguments import normalised_axes
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor, TensorLike, unwrapped
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.halos.halo import Halo
from meshcomm.halos.make import halo
from meshcomm.halos.widths import Width
from meshcomm.ndimage.arguments import Axes, Ints, Number, Operand, Output
from meshcomm.ndimage.axes import per_axis
from meshcomm.ndimage.calls import call_text, input_tensor, refuse_cyclic, scipy_ndimage, write_output
from meshcomm.ndimage.windows import FLIPPED, ghosts_of, widths_along
from meshcomm.numpy.elementwise.families import family

_BOOL = np.dtype(bool)


def generate_binary_structure(rank: int, connectivity: int) -> Array:
    """Return a structure of 3 elements along each axis, as scipy.ndimage.generate_binary_structure.

    Parameters
    ----------
    rank: the number of axes
    connectivity: the most axes along which a neighbour may differ from the centre

    >>> import meshcomm as mc
    >>> mc.ndimage.generate_binary_structure(2, 1).astype(int).tolist()
    [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
    """
    return scipy_ndimage().generate_binary_structure(rank, connectivity)


def iterate_structure(structure: ArrayLike, iterations: int, origin: Ints | None = None) -> Value:
    """Return a structure dilated by itself, as scipy.ndimage.iterate_structure.

    Parameters
    ----------
    structure: an array
    iterations: number of dilations
    origin: origin of the structure; if given, the origin of the result is returned as well

    >>> import meshcomm as mc
    >>> mc.ndimage.iterate_structure([1, 1, 1], 2).tolist()
    [True, True, True, True, True]
    """
    return scipy_ndimage().iterate_structure(structure, iterations, origin)


class _BinaryStep(NamedTuple):
    """An erosion or a dilation.

    Parameters
    ----------
    name: name of SciPy's function
    arguments: structure, border_value, origin and axes, for SciPy
    widths: for each axis, the number of elements of the structure before and after its centre
    centred: whether the centre of the structure is set
    """

    name: str
    arguments: Mapping[str, object]
    widths: Sequence[Width]
    centred: bool

    def __call__(self, block: Array, iterations: int, mask: Array | None) -> Array:
        return getattr(scipy_ndimage(), self.name)(block, iterations=iterations, mask=mask, **self.arguments)


def _structure(name: str, structure: Operand, ndim: int) -> Array:
    """Return the *structure* of a call; by default an element and its neighbours along one axis."""
    return generate_binary_structure(ndim, 1) if structure is None else allgather_array(name, structure).astype(bool)


def _step(
    name: str, tensor: DTensor, structure: Operand, border_value: Number, origin: Ints, axes: Axes
) -> _BinaryStep:
    """Return an erosion or a dilation of *tensor*; raise SciPy's errors."""
    structure_axes = normalised_axes(axes, tensor.ndim)
    structure_array = _structure(name, structure, len(structure_axes))
    arguments = {"structure": structure_array, "border_value": bool(border_value), "origin": origin}
    arguments |= {} if axes is None else {"axes": axes}
    getattr(scipy_ndimage(), name)(np.zeros((1,) * tensor.ndim, tensor.dtype), **arguments)
    origins = per_axis(origin, len(structure_axes), "origin")
    arguments["brute_force"] = any(origins)  # otherwise SciPy 1.17 damages memory if the structure is shifted
    widths = widths_along(name, structure_axes, tensor.ndim, structure_array.shape, origins)
    # A dilation flips the structure before it takes the centre.
    centre = tuple(widths[axis][1 if name in FLIPPED else 0] for axis in structure_axes)
    return _BinaryStep(name, arguments, widths, bool(structure_array[centre]))


def _repeated(
    step: _BinaryStep, input: DTensor, iterations: int, mask: Operand, output: Output, mask_name: str = "mask"
) -> DTensor:
    """Return the result of *iterations* of a step on *input*, or *output* with it. Collective."""
    try:
        iteration_count = operator.index(iterations)
    except TypeError:
        raise TypeError("iterations parameter should be an integer") from None
    if isinstance(output, DTensor) and output.dtype.kind == "c":
        raise TypeError("Complex output type not supported")
    refuse_cyclic(input)
    mask_block = _mask_block(mask, input)
    ghosts = ghosts_of(input, step.widths)
    is_set = mapped(_truth, input, dtype=_BOOL)
    if not input.size or not any(map(any, ghosts)):
        is_set = mapped(lambda block: step(block, iteration_count, mask_block) if block.size else block, is_set)
        return write_output(is_set, output)
    call = call_text(step.name, {**step.arguments, "iterations": iteration_count, mask_name: mask is None})
    compare_call("filter", input.mesh, call)
    boundary = [step.arguments["border_value"]] * input.ndim
    tensor_halo = halo(is_set, ghosts, boundary)
    _run_step(step, tensor_halo, iteration_count, mask_block)
    return write_output(tensor_halo.tensor().copy(), output)


def _mask_block(mask: Operand, tensor: DTensor) -> Array | None:
    """Return the block of a mask for the block of *tensor*. Collective if the mask has to move."""
    if mask is None:
        return None
    values = unwrapped(mask)
    if np.shape(values) != tensor.shape:
        raise RuntimeError("mask and input must have equal sizes")
    if isinstance(values, DTensor):
        return on_blocks(_truth, relaid(values, tensor.layout.axes, "mask", tensor.mesh))
    return on_blocks(lambda block: _truth(cut_out(np.asarray(values), tensor.layout.block_box(tensor.shape))), tensor)


def _truth(block: Array) -> Array:
    return np.not_equal(block, 0, order="C")


def _run_step(step: _BinaryStep, tensor_halo: Halo, iteration_count: int, mask: Array | None) -> None:
    """Run a step *iteration_count* times, or until nothing changes, on a block with its ghosts. Collective."""
    iterates_blocks, inner_tensor = iteration_count < 1 and step.centred, tensor_halo.tensor()

    def run_once(inner: Array) -> Array:
        """Run the step on the block, and return whether it has changed."""
        if not inner.size:
            return np.array(0)
        step_mask: Array | None = None
        if iterates_blocks:
            step_mask = np.zeros(tensor_halo.local.shape, bool)
            step_mask[tensor_halo.inner_slices] = True if mask is None else mask
        result = step(tensor_halo.local, -1 if iterates_blocks else 1, step_mask)[tensor_halo.inner_slices]
        if mask is not None and not iterates_blocks:
            result = np.where(mask, result, inner)
        has_changed = (result != inner).any()
        inner[...] = result
        return np.array(has_changed, np.int64)

    while True:
        share = on_blocks(run_once, inner_tensor)
        if iteration_count == 1:
            return
        iteration_count -= iteration_count > 1
        if (
            iteration_count < 1
            and not reduce_shares(step.name, inner_tensor, share, (), np.dtype(np.int64), op="max")._block
        ):
            return
        tensor_halo.update()


@family("scipy.ndimage")
def _binary_filter(
    name: str,
    input: TensorLike,
    structure: Operand = None,
    iterations: int = 1,
    mask: Operand = None,
    output: Output = None,
    border_value: Number = 0,
    origin: Ints = 0,
    brute_force: bool = False,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return the binary erosion. Collective over the mesh.

    Parameters
    ----------
    input: a tensor; elements that are not zero are set
    structure: array of the neighbourhood of an element; by default the element and its neighbours along one axis
    iterations: number of iterations; less than 1: until nothing changes
    mask: elements that may change: a tensor or an array of the shape of *input*
    output: a tensor to write into and return; by default the result is a tensor of booleans
    border_value: the value beyond the edges, 0 or 1
    origin: shift of the structure in elements; or one number for each axis
    brute_force: ignored: the result is the same
    axes: the axes of the structure; by default all

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.binary_erosion(mc.distribute([0, 1, 1, 1, 1, 0], rows)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[False, False, True], [True, False, False]]
    """
    tensor = input_tensor(name, input)
    return _repeated(_step(name, tensor, structure, border_value, origin, axes), tensor, iterations, mask, output)


binary_erosion = _binary_filter("binary_erosion")
binary_dilation = _binary_filter("binary_dilation", "Return the binary dilation. Collective over the mesh.")


@family("scipy.ndimage")
def _two_steps(
    name: str,
    input: TensorLike,
    structure: Operand = None,
    iterations: int = 1,
    output: Output = None,
    origin: Ints = 0,
    mask: Operand = None,
    border_value: Number = 0,
    brute_force: bool = False,
    *,
    axes: Axes = None,
) -> DTensor:
    is_opening = name == "binary_opening"
    first_step, second_step = (binary_erosion, binary_dilation) if is_opening else (binary_dilation, binary_erosion)
    intermediate = first_step(input, structure, iterations, mask, None, border_value, origin, axes=axes)
    return second_step(intermediate, structure, iterations, mask, output, border_value, origin, axes=axes)


binary_opening = _two_steps(
    "binary_opening",
    "Return the dilation of the erosion. Collective over the mesh.",
    "Arguments are those of `binary_erosion`, in another order.",
)
binary_closing = _two_steps("binary_closing", "Return the erosion of the dilation. Collective over the mesh.")


@refusable
def binary_hit_or_miss(
    input: TensorLike,
    structure1: Operand = None,
    structure2: Operand = None,
    output: Output = None,
    origin1: Ints = 0,
    origin2: Ints | None = None,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return where one structure fits the elements and another one the rest. Collective over the mesh.

    Source: scipy.ndimage.binary_hit_or_miss.

    Other arguments are those of `binary_erosion`.

    Parameters
    ----------
    structure1: array of the elements that must not be zero
    structure2: array of the elements that must be zero; by default all others
    origin1, origin2: shifts of the structures in elements; by default *origin2* is *origin1*
    """
    tensor = input_tensor("binary_hit_or_miss", input)
    ndim = len(normalised_axes(axes, tensor.ndim))
    hit = _structure("binary_hit_or_miss", structure1, ndim)
    miss = ~hit if structure2 is None else _structure("binary_hit_or_miss", structure2, ndim)
    origins = per_axis(origin1 if origin2 is None else origin2, ndim, "origin")
    # A dilation flips its structure: flipped here first, the structure applies as passed.
    flipped_origins = [-operator.index(origin) - (n % 2 == 0) for origin, n in zip(origins, miss.shape, strict=True)]
    fits = binary_erosion(tensor, hit, origin=origin1, axes=axes)
    misfits = binary_dilation(tensor, miss[(slice(None, None, -1),) * miss.ndim], origin=flipped_origins, axes=axes)
    return write_output(mapped(lambda a, b: a & ~b, fits, misfits), output)


@refusable
def binary_propagation(
    input: TensorLike,
    structure: Operand = None,
    mask: Operand = None,
    output: Output = None,
    border_value: Number = 0,
    origin: Ints = 0,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return the dilation within *mask* that goes on until nothing changes. Collective over the mesh.

    Source: scipy.ndimage.binary_propagation.

    Arguments are those of `binary_erosion`.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     seed = mc.distribute([0, 0, 1, 0, 0, 0], rows)
    ...     return mc.ndimage.binary_propagation(seed, mask=[0, 1, 1, 1, 0, 1]).local.astype(int).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0, 1, 1], [1, 0, 0]]
    """
    return binary_dilation(input, structure, -1, mask, output, border_value, origin, axes=axes)


@refusable
def binary_fill_holes(
    input: TensorLike, structure: Operand = None, output: Output = None, origin: Ints = 0, *, axes: Axes = None
) -> DTensor:
    """Return the tensor without holes: zeros from which no way leads to an edge. Collective over the mesh.

    Source: scipy.ndimage.binary_fill_holes.

    Arguments are those of `binary_erosion`.
    """
    tensor = input_tensor("binary_fill_holes", input)
    background = mapped(lambda block: block == 0, tensor, dtype=_BOOL)
    seed = mapped(lambda block: np.zeros(block.shape, bool), tensor, dtype=_BOOL)
    exterior = binary_dilation(seed, structure, -1, background, None, 1, origin, axes=axes)
    return write_output(mapped(np.logical_not, exterior), output)
