"""Binary morphology: erosions and dilations, once, several times, or until nothing changes.

An iteration needs ghosts around the blocks, so they are exchanged once for each. Until nothing changes there are fewer
exchanges: SciPy lets each block change as far as it can while its ghosts stay, and only then are they exchanged. A
structure whose centre counts makes this right, because then elements change in one direction only, and the last state
does not depend on their order. Other structures need an exchange for each iteration.

Arguments and values are SciPy's. The result is a tensor of booleans in the layout of *input*, or *output*. All are
Collective over the mesh of *input* if an axis that the structure looks along is sharded. ``LayoutError`` for plain
arrays and for `Cyclic` axes.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import mapped, on_blocks
from meshcomm.blocks.reduce import added_up
from meshcomm.blocks.small import compare_call, gathered
from meshcomm.core._arguments import normalised_axes
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor, Held, unwrapped
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.halos.halo import Halo
from meshcomm.halos.make import halo
from meshcomm.halos.widths import Width
from meshcomm.ndimage.axes import per_axis
from meshcomm.ndimage.calls import Output, call_text, held, refuse_cyclic, scipy_ndimage, stored
from meshcomm.ndimage.windows import FLIPPED, ghosts_of, widths_along
from meshcomm.numpy.elementwise.families import family

_BOOL = np.dtype(bool)


def generate_binary_structure(rank: int, connectivity: int) -> Array:
    """Return a structure of 3 elements along each axis, as scipy.ndimage.generate_binary_structure.

    Parameters
    ----------
    rank: the number of axes
    connectivity: along how many axes at once an element may lie beside the centre

    >>> import meshcomm as mc
    >>> mc.ndimage.generate_binary_structure(2, 1).astype(int).tolist()
    [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
    """
    found: Array = scipy_ndimage().generate_binary_structure(rank, connectivity)
    return found


def iterate_structure(structure: Value, iterations: int, origin: Value = None) -> Value:
    """Return a structure dilated by itself, as scipy.ndimage.iterate_structure.

    Parameters
    ----------
    structure: an array
    iterations: how often
    origin: if given, that of the result is returned, too

    >>> import meshcomm as mc
    >>> mc.ndimage.iterate_structure([1, 1, 1], 2).tolist()
    [True, True, True, True, True]
    """
    return scipy_ndimage().iterate_structure(structure, iterations, origin)


class _Step(NamedTuple):
    """An erosion or a dilation.

    Parameters
    ----------
    name: of SciPy's function
    arguments: structure, border_value, origin and axes, for SciPy
    widths: how many elements before and after each element it looks at, along each axis
    centred: whether the centre of the structure counts
    """

    name: str
    arguments: Mapping[str, Value]
    widths: Sequence[Width]
    centred: bool

    def __call__(self, block: Array, iterations: int, mask: Array | None) -> Array:
        made: Array = getattr(scipy_ndimage(), self.name)(block, iterations=iterations, mask=mask, **self.arguments)
        return made


def _structure(name: str, structure: Value, ndim: int) -> Array:
    """Return the *structure* of a call; by default an element and those beside it."""
    return generate_binary_structure(ndim, 1) if structure is None else gathered(name, structure).astype(bool)


def _step(name: str, tensor: DTensor, structure: Value, border_value: Value, origin: Value, axes: Value) -> _Step:
    """Return an erosion or a dilation of *tensor*; raise what SciPy raises."""
    along = normalised_axes(axes, tensor.ndim)
    whole = _structure(name, structure, len(along))
    arguments = {"structure": whole, "border_value": bool(border_value), "origin": origin}
    arguments |= {} if axes is None else {"axes": axes}
    getattr(scipy_ndimage(), name)(np.zeros((1,) * tensor.ndim, tensor.dtype), **arguments)
    origins = per_axis(origin, len(along), "origin")
    arguments["brute_force"] = any(origins)  # SciPy 1.17's other way damages memory if the structure is shifted
    widths = widths_along(name, along, tensor.ndim, whole.shape, origins)
    # A dilation turns the structure round, and takes the centre from there.
    centre = tuple(widths[axis][1 if name in FLIPPED else 0] for axis in along)
    return _Step(name, arguments, widths, bool(whole[centre]))


def _repeated(
    step: _Step, input: DTensor, iterations: Value, mask: Value, output: Output, mask_name: str = "mask"
) -> DTensor:
    """Return what *iterations* of a step make of *input*, or *output* with that. Collective."""
    try:
        times = operator.index(iterations)
    except TypeError:
        raise TypeError("iterations parameter should be an integer") from None
    if isinstance(output, DTensor) and output.dtype.kind == "c":
        raise TypeError("Complex output type not supported")
    refuse_cyclic(input)
    within = _mask_block(mask, input)
    ghosts = ghosts_of(input, step.widths)
    found = mapped(_truth, input, dtype=_BOOL)
    if not input.size or not any(map(any, ghosts)):
        found = mapped(lambda block: step(block, times, within) if block.size else block, found)
        return stored(found, output)
    call = call_text(step.name, {**step.arguments, "iterations": times, mask_name: mask is None})
    compare_call("filter", input.mesh, call)
    boundary = [step.arguments["border_value"]] * input.ndim
    around = halo(found, ghosts, boundary)
    _run(step, around, times, within)
    return stored(around.tensor().copy(), output)


def _mask_block(mask: Value, tensor: DTensor) -> Array | None:
    """Return the block of a mask that goes with that of *tensor*. Collective if the mask has to move."""
    if mask is None:
        return None
    given = unwrapped(mask)
    if np.shape(given) != tensor.shape:
        raise RuntimeError("mask and input must have equal sizes")
    if isinstance(given, DTensor):
        return on_blocks(_truth, relaid(given, tensor.layout.axes, "mask", tensor.mesh))
    return on_blocks(lambda block: _truth(cut_out(np.asarray(given), tensor.layout.block_box(tensor.shape))), tensor)


def _truth(block: Array) -> Array:
    return np.not_equal(block, 0, order="C")


def _run(step: _Step, around: Halo, times: int, mask: Array | None) -> None:
    """Run a step *times* times, or until nothing changes, on a block with its ghosts. Collective."""
    by_blocks, blocks = times < 1 and step.centred, around.tensor()

    def changes(inner: Array) -> Array:
        """Run the step on the block, and return whether it has changed."""
        if not inner.size:
            return np.array(0)
        within: Array | None = None
        if by_blocks:
            within = np.zeros(around.local.shape, bool)
            within[around.inner_slices] = True if mask is None else mask
        made = step(around.local, -1 if by_blocks else 1, within)[around.inner_slices]
        if mask is not None and not by_blocks:
            made = np.where(mask, made, inner)
        changed = (made != inner).any()
        inner[...] = made
        return np.array(changed, np.int64)

    while True:
        share = on_blocks(changes, blocks)
        if times == 1:
            return
        times -= times > 1
        if times < 1 and not added_up(step.name, blocks, share, (), np.dtype(np.int64), op="max")._block:
            return
        around.update()


@family("scipy.ndimage")
def _binary(
    name: str,
    input: Held,
    structure: Value = None,
    iterations: int = 1,
    mask: Value = None,
    output: Output = None,
    border_value: Value = 0,
    origin: Value = 0,
    brute_force: bool = False,
    *,
    axes: Value = None,
) -> DTensor:
    """Return the binary erosion. Collective over the mesh.

    Parameters
    ----------
    input: a tensor; elements that are not zero count
    structure: which elements around an element count, as an array; by default itself and those beside it
    iterations: how often; less than 1 for until nothing changes
    mask: where elements may change: a tensor or an array of the shape of *input*
    output: a tensor to write into and return; the result is one of booleans
    border_value: what is beyond the edges, 0 or 1
    origin: by how many elements the structure is shifted; or one number for each axis
    brute_force: ignored: the result is the same
    axes: which axes the structure has; by default all

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.binary_erosion(mc.distribute([0, 1, 1, 1, 1, 0], rows)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[False, False, True], [True, False, False]]
    """
    tensor = held(name, input)
    return _repeated(_step(name, tensor, structure, border_value, origin, axes), tensor, iterations, mask, output)


binary_erosion = _binary("binary_erosion")
binary_dilation = _binary("binary_dilation", "Return the binary dilation. Collective over the mesh.")


@family("scipy.ndimage")
def _twice(
    name: str,
    input: Held,
    structure: Value = None,
    iterations: int = 1,
    output: Output = None,
    origin: Value = 0,
    mask: Value = None,
    border_value: Value = 0,
    brute_force: bool = False,
    *,
    axes: Value = None,
) -> DTensor:
    opens = name == "binary_opening"
    first, second = (binary_erosion, binary_dilation) if opens else (binary_dilation, binary_erosion)
    between = first(input, structure, iterations, mask, None, border_value, origin, axes=axes)
    return second(between, structure, iterations, mask, output, border_value, origin, axes=axes)


binary_opening = _twice(
    "binary_opening",
    "Return the dilation of the erosion. Collective over the mesh.",
    "Arguments are those of `binary_erosion`, in another order.",
)
binary_closing = _twice("binary_closing", "Return the erosion of the dilation. Collective over the mesh.")


@refusable
def binary_hit_or_miss(
    input: Held,
    structure1: Value = None,
    structure2: Value = None,
    output: Output = None,
    origin1: Value = 0,
    origin2: Value = None,
    *,
    axes: Value = None,
) -> DTensor:
    """Return where one structure fits the elements and another one the rest. Collective over the mesh.

    Source: scipy.ndimage.binary_hit_or_miss.

    Other arguments are those of `binary_erosion`.

    Parameters
    ----------
    structure1: which elements must not be zero
    structure2: which elements must be zero; by default those that *structure1* leaves out
    origin1, origin2: by how many elements the structures are shifted; the second by default as the first
    """
    tensor = held("binary_hit_or_miss", input)
    ndim = len(normalised_axes(axes, tensor.ndim))
    hit = _structure("binary_hit_or_miss", structure1, ndim)
    miss = ~hit if structure2 is None else _structure("binary_hit_or_miss", structure2, ndim)
    origins = per_axis(origin1 if origin2 is None else origin2, ndim, "origin")
    # A dilation turns its structure round: turned before, it is as given.
    turned = [-origin - (n % 2 == 0) for origin, n in zip(origins, miss.shape, strict=True)]
    fits = binary_erosion(tensor, hit, origin=origin1, axes=axes)
    other = binary_dilation(tensor, miss[(slice(None, None, -1),) * miss.ndim], origin=turned, axes=axes)
    return stored(mapped(lambda a, b: a & ~b, fits, other), output)


@refusable
def binary_propagation(
    input: Held,
    structure: Value = None,
    mask: Value = None,
    output: Output = None,
    border_value: Value = 0,
    origin: Value = 0,
    *,
    axes: Value = None,
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
    input: Held, structure: Value = None, output: Output = None, origin: Value = 0, *, axes: Value = None
) -> DTensor:
    """Return the tensor without holes: zeros from which no way leads to an edge. Collective over the mesh.

    Source: scipy.ndimage.binary_fill_holes.

    Arguments are those of `binary_erosion`.
    """
    tensor = held("binary_fill_holes", input)
    outside = mapped(lambda block: block == 0, tensor, dtype=_BOOL)
    seed = mapped(lambda block: np.zeros(block.shape, bool), tensor, dtype=_BOOL)
    reached = binary_dilation(seed, structure, -1, outside, None, 1, origin, axes=axes)
    return stored(mapped(np.logical_not, reached), output)
