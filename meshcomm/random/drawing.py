"""Drawing a tensor: parameters that broadcast, a layout for the result, and the generator's state."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator as NumpyGenerator
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import map_into, on_blocks
from meshcomm.blocks.rules import aligned_axes, broadcast_shape, common_layout, mesh_of
from meshcomm.blocks.small import agree_on_result
from meshcomm.blocks.views import check_writable
from meshcomm.core._arguments import as_array, as_dtype, as_shape, quote
from meshcomm.core._types import AnyDict, Array, DType, Names, Shape, ShapeLike, Slices
from meshcomm.core.arrays.create import empty
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.specs import Cuts
from meshcomm.core.ranks.meshes import default_layout
from meshcomm.errors import DTypeError, LayoutError, ShapeError
from meshcomm.random.streams import MAX_TILE_ELEMENTS, Draw, Streams, Tiles, tile_sides

Values: TypeAlias = DTensor | ArrayLike
"""A parameter of a distribution: a number, an array that is the same on all ranks, or a tensor."""

DrawResult: TypeAlias = Any
"""A draw: a tensor; without a size and a layout it may be a Python number or an array."""

Size: TypeAlias = ShapeLike | None
Where: TypeAlias = Layout | None
GeneratorState: TypeAlias = AnyDict
"""The state of a generator: a dict that JSON can hold, as NumPy's bit generators have it."""
Seed: TypeAlias = int | Sequence[int] | SeedSequence

_METHODS_WITH_OUT = ("random", "standard_normal", "standard_exponential", "standard_gamma")
"""NumPy's methods with an argument ``out=``."""

_INTEGER_METHODS = ("binomial", "geometric", "hypergeometric", "logseries", "negative_binomial", "poisson", "zipf")
"""NumPy's methods that draw integers."""


class GeneratorBase:
    """The base class of generators: the seed, the number of the next call, and the common part of all methods."""

    def __init__(self, seed: Seed) -> None:
        self._set(seed if isinstance(seed, SeedSequence) else SeedSequence(seed), 0)

    def _set(self, seeds: SeedSequence, call: int) -> None:
        self._seeds, self._call = seeds, call
        self._streams = Streams(seeds)

    @property
    def state(self) -> GeneratorState:
        """The state that determines the next numbers: a dict that JSON can hold. Set it to draw them again.

        >>> import meshcomm as mc
        >>> rng = mc.random.default_rng(7)
        >>> before = rng.state
        >>> first = rng.random()
        >>> rng.state = before
        >>> rng.random() == first
        True
        """
        entropy = np.asarray(self._seeds.entropy)
        return {
            "bit_generator": "Philox",
            "entropy": entropy.tolist(),
            "spawn_key": list(self._seeds.spawn_key),
            "pool_size": self._seeds.pool_size,
            "n_children_spawned": self._seeds.n_children_spawned,
            "call": self._call,
        }

    @state.setter
    def state(self, state: GeneratorState) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of a generator must be a dict, not {quote(state)}")
        fields = dict(state)
        if fields.pop("bit_generator", None) != "Philox" or "call" not in fields:
            raise ValueError(f"this is not the state of a generator of meshcomm: {quote(state)}")
        self._set(*_seeds_and_call(**fields))

    def __getstate__(self) -> GeneratorState:
        return self.state

    def __setstate__(self, state: GeneratorState) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"Generator(Philox), seed {quote(self._seeds.entropy)}, before call {self._call}"

    def _layout_of(self, shape: Shape, dtype: DType) -> Layout:
        """Return the layout of a draw without ``layout=``."""
        return default_layout(len(shape))

    def _next(self) -> Callable[[int], NumpyGenerator]:
        """Return a function from the number of a tile to its stream, for the next call."""
        streams, call = self._streams, self._call
        self._call += 1
        return lambda tile: streams.at(call, tile)

    def _draw(
        self, name: str, parameters: tuple[Values, ...], size: Size, layout: Where, **options: Any
    ) -> DrawResult:
        """Return a draw by NumPy's method *name*. Collective if one of its parameters is a tensor.

        Parameters
        ----------
        name: name of the method
        parameters: the parameters of the distribution, which broadcast
        size: shape of the result, by default that of the broadcast parameters
        layout: layout of the result
        options: other arguments of the method; ``out=`` may be a tensor
        """
        out = options.pop("out", None)
        values = [_as_parameter(x) for x in parameters]
        shape = broadcast_shape(name, [getattr(x, "shape", ()) for x in values])
        if size is not None:
            size = as_shape(size)
            _check_size(name, size, shape)
            shape = size
        if out is not None:
            _check_out(name, out, shape if size is not None or shape else None, layout)
            shape = out.shape
        tensors = [x for x in values if isinstance(x, DTensor)]
        if not tensors:  # NumPy's errors
            sample_size = (int(name == "integers"), *shape) if any(map(np.ndim, values)) else 1
            getattr(self._streams.at(self._call), name)(*values, size=sample_size, **options)
        if size is None and layout is None and out is None and not shape and not tensors:
            return getattr(self._next()(0), name)(*values, **options)
        dtype = as_dtype(options.get("dtype", np.int64 if name in _INTEGER_METHODS else np.float64))
        method = _Method(name, [_parameter_block(x) for x in values], options)
        if tensors:
            return self._by_tensors(method, shape, dtype, layout, out)
        return self._fill_tensor(out, shape, dtype, layout, method.draw)

    def _fill_tensor(
        self, out: DTensor | None, shape: Shape, dtype: DTypeLike, layout: Where, draw: Draw, *, whole_axes: int = 0
    ) -> DTensor:
        """Return a tensor, or *out*, filled by *draw*.

        Parameters
        ----------
        out: a tensor of *shape* to write to, or None
        shape, dtype, layout: shape, dtype and layout of a new tensor
        draw: function that draws a tile
        whole_axes: number of last axes that are whole in each tile
        """
        if out is not None:
            if out.dtype != dtype:
                raise DTypeError(f"out= is a {quote(out)}, but the result is of {dtype}")
            result = out
        else:
            result = empty(shape, dtype, self._layout_of(shape, as_dtype(dtype)) if layout is None else layout)
        tiled_ndim = len(shape) - whole_axes
        event_size = int(np.prod(shape[tiled_ndim:], dtype=np.intp))
        stream = self._next()
        sides = tile_sides(shape[:tiled_ndim], max(1, MAX_TILE_ELEMENTS // max(1, event_size))) + tuple(
            max(1, n) for n in shape[tiled_ndim:]
        )
        tiles = Tiles(shape, sides, stream)
        return map_into(lambda block: tiles.fill(block, result.layout.block_box(shape), draw), result)

    def _by_tensors(
        self, method: "_Method", shape: Shape, dtype: DType, layout: Where, out: DTensor | None
    ) -> DTensor:
        """Return a draw by a *method* with tensors as parameters. Collective.

        Parameters move to blocks that are cut between tiles. Numbers are drawn there, and move to the layout.
        """
        name, tensors = method.name, [x for x in method.parameters if isinstance(x, DTensor)]
        mesh = mesh_of(tensors)
        result_layout = layout or (common_layout(shape, tensors) if out is None else out.layout)
        sides = tile_sides(shape)
        base = result_layout if result_layout.mesh == mesh else common_layout(shape, tensors)
        tile_layout = Layout([_tile_cut(base, axis, n, sides[axis]) for axis, n in enumerate(shape)], base.mesh)
        aligned = method._replace(parameters=[_aligned_block(name, x, shape, tile_layout) for x in method.parameters])
        call_text = f"{name} of {shape} in {tile_layout.specs_text}"
        result = agree_on_result(
            name, mesh, call_text, lambda: self._fill_tensor(None, shape, dtype, tile_layout, aligned.draw)
        )
        if out is not None:
            out[...] = result
            return out
        return relaid(result, result_layout.axes, name) if base is result_layout else relayout(result, result_layout)


class _ParameterBlock(NamedTuple):
    """The block of a parameter on a rank, with the shape of the whole array, and the start of the block in it."""

    block: Array
    shape: Shape
    starts: tuple[int, ...]

    def tile(self, global_slices: tuple[slice, ...]) -> Array:
        """Return the values for a tile, which broadcast to it."""
        leading_ndim = len(global_slices) - len(self.shape)
        slices = [
            slice(None) if n == 1 else slice(global_slice.start - start, global_slice.stop - start)
            for n, start, global_slice in zip(self.shape, self.starts, global_slices[leading_ndim:], strict=True)
        ]
        index: Slices = (..., *slices)
        return self.block[index]


_Parameter: TypeAlias = Values | _ParameterBlock | None
"""A parameter: a whole one, its block on a rank, or None outside of the mesh."""


class _Method(NamedTuple):
    """A method of NumPy's generator, with its parameters and options."""

    name: str
    parameters: Sequence[_Parameter]
    options: Mapping[str, object]

    def draw(self, generator: NumpyGenerator, global_slices: tuple[slice, ...], out: Array | None) -> Array | None:
        """Draw a tile: see `Draw`."""
        method = getattr(generator, self.name)
        values = [x.tile(global_slices) if isinstance(x, _ParameterBlock) else x for x in self.parameters]
        if out is not None and self.name in _METHODS_WITH_OUT:
            method(*values, out=out, **self.options)
            return None
        size = tuple([global_slice.stop - global_slice.start for global_slice in global_slices])
        return method(*values, size=size, **self.options)


def _as_parameter(x: Values) -> Values:
    """Return a parameter as a tensor or an array; a number as it is."""
    value = unwrapped(x)
    return value if isinstance(value, DTensor) or np.ndim(value) == 0 else as_array(value)


def _parameter_block(x: Values) -> Values | _ParameterBlock:
    """Return a plain array as a `_ParameterBlock`; a tensor or a number as it is."""
    return _ParameterBlock(x, x.shape, (0,) * x.ndim) if isinstance(x, np.ndarray) and x.ndim else x


def _aligned_block(name: str, x: _Parameter, shape: Shape, layout: Layout) -> _Parameter:
    """Return the block of a parameter for a result of *shape* in *layout*. Collective if it moves."""
    if not isinstance(x, DTensor):
        return x
    axes = aligned_axes(x.shape, shape, layout)
    relaid_tensor = relaid(x, axes, name, layout.mesh)
    return on_blocks(
        lambda block: _ParameterBlock(
            block, x.shape, tuple(span[0] for span in relaid_tensor.layout.block_box(x.shape))
        ),
        relaid_tensor,
    )


def _tile_cut(layout: Layout, axis: int, n: int, side: int) -> Names:
    """Return the cut of *axis* of length *n* between tiles of *side* elements that is closest to *layout*."""
    names = tuple(layout.axes[axis])
    if not names:
        return ()
    starts = layout.cut(axis, n).consecutive.all_starts()
    return Cuts(names, [*(min(n, (start + side // 2) // side * side) for start in starts[:-1]), n])


def _check_size(name: str, size: Shape, shape: Shape) -> None:
    """Raise ``ShapeError`` unless parameters of *shape* broadcast to *size*."""
    fits = len(shape) <= len(size) and all(n in (1, m) for n, m in zip(shape[::-1], size[::-1], strict=False))
    if not fits:
        raise ShapeError(f"{name}: Output size {size} is not compatible with broadcast dimensions of inputs {shape}")


def _check_out(name: str, out: object, shape: Shape | None, layout: Where) -> None:
    tensor = as_tensor(f"{name}: out=", out)
    check_writable(f"{name}: out=", tensor)
    if shape is not None and tensor.shape != shape:
        raise ShapeError(f"{name}: out= has shape {tensor.shape}, but the result has {shape}")
    if layout is not None and layout != tensor.layout:
        raise LayoutError(f"{name}: out= is a {quote(tensor)}, but layout= is {quote(layout)}")


def _seeds_and_call(
    call: int, entropy: int | list[int], n_children_spawned: int = 0, **fields: Any
) -> tuple[SeedSequence, int]:
    """Return the seed sequence and the number of the next call, from the fields of a generator's state."""
    return SeedSequence(entropy, n_children_spawned=n_children_spawned, **fields), call
