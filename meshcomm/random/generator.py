"""The generator of random tensors: distributions, and orders of elements."""

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.random import BitGenerator, RandomState
from numpy.random import Generator as NumpyGenerator
from numpy.typing import ArrayLike

from meshcomm.blocks.align import relaid, replicated
from meshcomm.blocks.make import as_sharded, mapped
from meshcomm.blocks.map import with_out
from meshcomm.blocks.views import check_writable
from meshcomm.core._arguments import as_array, as_shape, quote
from meshcomm.core._types import Array, Names, Shape
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.numpy.indexing.taking import take, take_along_axis
from meshcomm.numpy.order.order import argsort
from meshcomm.numpy.shapes.shaping import normalised_axis, regrouped
from meshcomm.random.distributions import Distributions
from meshcomm.random.drawing import DrawResult, Seed, Size, Where

Weights: TypeAlias = Sequence[float] | Array | None
"""The probability of each element; None for equal ones."""

_INDEX = np.dtype(np.int64)
_SMALL_CHOICE_DIVISOR = 50
"""Each rank lets NumPy make a choice of at most a fiftieth of the elements: all get the same. Larger choices without
replacement come from sorted random keys."""


def default_rng(seed: "Seed | Generator") -> "Generator":
    """Return a generator of random tensors, with the methods of numpy.random.Generator.

    All ranks pass the same *seed*: an integer, a sequence of integers, or a numpy.random.SeedSequence. All make the
    same calls of the generator, also ranks outside of a mesh. Then a seed gives the same numbers in every layout and
    on any number of ranks. If *seed* is a generator, it is returned. ``TypeError`` for None: each rank would draw a
    different seed.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     return mc.random.default_rng(7).integers(10, size=(3, 2), layout=rows).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[2, 4], [9, 4]], [[1, 3]]]
    """
    if isinstance(seed, Generator):
        return seed
    if seed is None or isinstance(seed, BitGenerator | NumpyGenerator | RandomState):
        reason = "each rank would draw another" if seed is None else "streams begin with a seed"
        raise TypeError(f"mc.random.default_rng: seed {quote(seed)}: {reason}; pass an integer, the same on all ranks")
    return Generator(seed)


class Generator(Distributions):
    """Random tensors, the same in every layout and on any number of ranks: see `default_rng`.

    Each call of a method takes the next number of the generator, so all ranks make the same calls. Only methods that
    move rows, and those with tensors as parameters, communicate.
    """

    def spawn(self, n_children: int) -> "list[Generator]":
        """Return *n_children* generators that are independent of this one and of each other.

        >>> import meshcomm as mc
        >>> first, second = mc.random.default_rng(7).spawn(2)
        >>> first.random() == second.random()
        False
        """
        return [Generator(seeds) for seeds in self._seeds.spawn(n_children)]

    def bytes(self, length: int) -> bytes:
        """Return *length* random bytes, the same on all ranks.

        >>> import meshcomm as mc
        >>> len(mc.random.default_rng(7).bytes(3))
        3
        """
        return self._next()(0).bytes(length)

    def permutation(self, x: DTensor | ArrayLike, axis: int = 0, *, layout: Where = None) -> DTensor:
        """Return the integers below *x* in random order, or the rows of a tensor. Collective over the mesh.

        Random keys are sorted, so no rank holds the whole order. Rows move as those of ``t[index]``.

        Parameters
        ----------
        x: an integer, a tensor, or an array that is the same on all ranks
        axis: axis of *x* to reorder
        layout: layout of the result, by default the layout of *x*

        >>> import meshcomm as mc
        >>> layout = mc.Layout([mc.UNSHARDED], mc.create_mesh([("x", 1)]))
        >>> sorted(mc.random.default_rng(7).permutation(4, layout=layout).local.tolist())
        [0, 1, 2, 3]
        """
        source = unwrapped(x)
        if isinstance(source, int | np.integer):
            shape = (max(0, int(source)),)
            return self._random_order(shape, self._layout_of(shape, _INDEX) if layout is None else layout)
        if not isinstance(source, DTensor):
            array = as_array(source)
            normalised_axis(axis, array.ndim)
            source = self._in_layout(array, layout)
        result = self._take_in_random_order(source, axis)
        return result if layout is None or layout == result.layout else relayout(result, layout)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """Put the rows of a tensor into random order, in place. Collective over the mesh.

        An array or a list is shuffled in the same order on all ranks, and nothing moves.

        >>> import meshcomm as mc
        >>> t = mc.distribute([3, 4, 5], mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> mc.random.default_rng(7).shuffle(t)
        >>> sorted(t.local.tolist())
        [3, 4, 5]
        """
        tensor = unwrapped(x)
        if not isinstance(tensor, DTensor):
            self._next()(0).shuffle(tensor, axis)
            return
        check_writable("shuffle", tensor)
        tensor[...] = self._take_in_random_order(tensor, axis)

    def permuted(
        self, x: DTensor | ArrayLike, axis: int | None = None, out: DTensor | None = None, *, layout: Where = None
    ) -> DTensor:
        """Return a tensor with each line along *axis* in its own random order. Collective over the mesh.

        With ``axis=None`` all elements are shuffled as one line. *out* is a tensor to write the result to.
        Parameters are those of `permutation`.

        >>> import meshcomm as mc
        >>> t = mc.distribute([[3, 4, 5]] * 2, mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 1)])))
        >>> sorted(mc.random.default_rng(7).permuted(t, axis=1).local[1].tolist())
        [3, 4, 5]
        """
        tensor = unwrapped(x)
        if np.ndim(tensor) == 0:
            raise TypeError(f"permuted takes a tensor or an array with axes, not {quote(tensor)}")
        if not isinstance(tensor, DTensor):
            tensor = self._in_layout(as_array(tensor), layout)
        if axis is None:
            flat = regrouped(tensor, (tensor.size,), name="permuted")
            shuffled = regrouped(self._take_in_random_order(flat, 0), tensor.shape, name="permuted")
            result = relaid(shuffled, tensor.layout.axes, "permuted")
        else:
            axis_number = normalised_axis(axis, tensor.ndim)
            order = argsort(self._random_keys(tensor.shape, tensor.layout), axis_number, "stable")
            result = take_along_axis(tensor, order, axis_number)
        if out is None and layout is not None and layout != result.layout:
            return relayout(result, layout)
        return with_out("permuted", out, result)

    def choice(
        self,
        a: DTensor | ArrayLike,
        size: Size = None,
        replace: bool = True,
        p: Weights | DTensor = None,
        axis: int = 0,
        shuffle: bool = True,
        *,
        layout: Where = None,
    ) -> DrawResult:
        """Choose elements along *axis*, or integers below *a*. Collective if *a* or *p* is a tensor.

        Parameters
        ----------
        a: an integer, a tensor, or an array that is the same on all ranks
        size: shape that replaces *axis* in the result; None for one element
        replace: whether an element may be chosen again
        p: the probability of each element, the same on all ranks, or a tensor; each rank holds all of them
        axis: axis of *a*
        shuffle: NumPy's argument; the order is always random
        layout: layout of the result; by default, a choice from a tensor has its axis cut as before

        NumPy's errors.

        >>> import meshcomm as mc
        >>> mc.random.default_rng(7).choice(5, p=[0, 0, 1, 0, 0])
        2
        """
        population, weights = unwrapped(a), unwrapped(p)
        if isinstance(weights, DTensor):
            weights = weights.to_numpy()
        is_integer = not isinstance(population, DTensor) and np.ndim(population) == 0
        source = None if is_integer else population if isinstance(population, DTensor) else as_array(population)
        choice_axis = 0 if source is None else normalised_axis(axis, source.ndim)
        n = cast("int", population) if source is None else source.shape[choice_axis]  # NumPy's choice checks it
        self._streams.at(self._call).choice(n, int(size is None or 0 not in as_shape(size)), replace, weights)
        if size is None and (source is None or layout is None):
            element_index = int(self._next()(0).choice(n, p=weights))
            return element_index if source is None else np.take(source, element_index, choice_axis)
        shape = () if size is None else as_shape(size)
        index_layout = self._index_layout(source, choice_axis, shape, layout)
        index = self._random_indices(max(0, int(n)), shape, replace, weights, index_layout)
        if source is None:
            return index
        if not isinstance(source, DTensor):
            source = replicated(source, index_layout.mesh)
        result = take(source, index, choice_axis)
        return result if layout is None or layout == result.layout else relayout(result, layout)

    # -- layouts ------------------------------------------------------------------------------------------------------

    def _in_layout(self, array: Array, layout: Where) -> DTensor:
        """Return an array, which is the same on all ranks, as a tensor in *layout*; by default in the default one."""
        return distribute(array, self._layout_of(array.shape, array.dtype) if layout is None else layout)

    def _index_layout(self, source: DTensor | Array | None, axis: int, shape: Shape, layout: Where) -> Layout:
        """Return the layout of the index of a choice: as the axes of the index in *layout*, or as *axis* in *source*.

        In the result of a choice, the axes of *shape* replace *axis*.
        """
        if source is None:
            return self._layout_of(shape, _INDEX) if layout is None else layout
        if layout is not None and (not isinstance(source, DTensor) or layout.mesh == source.mesh):
            return Layout(layout.axes[axis : axis + len(shape)], layout.mesh)
        if not isinstance(source, DTensor):
            return self._layout_of(shape, _INDEX)
        names = tuple(source.layout.axes[axis])
        return Layout([names, *[()] * (len(shape) - 1)][: len(shape)], source.mesh)

    # -- indices ------------------------------------------------------------------------------------------------------

    def _random_keys(self, shape: Shape, layout: Layout) -> DTensor:
        """Return random integers of 64 bits: two of 2**28 are equal with a probability of 1 in 512."""
        return self.integers(2**64 - 1, size=shape, dtype=np.uint64, endpoint=True, layout=layout)

    def _random_order(self, shape: Shape, layout: Layout) -> DTensor:
        """Return the indices of an axis in random order. Collective if it is sharded."""
        return argsort(self._random_keys(shape, layout), 0, "stable")

    def _take_in_random_order(self, tensor: DTensor, axis: int) -> DTensor:
        """Return *tensor* with the elements along *axis* in random order, in the same layout. Collective."""
        axis_number = normalised_axis(axis, tensor.ndim)
        order = self._random_order((tensor.shape[axis_number],), tensor.layout.take([axis_number]))
        result = take(tensor, order, axis_number)
        return result if result.layout == tensor.layout else relayout(result, tensor.layout)

    def _random_indices(self, n: int, shape: Shape, replace: bool, weights: Weights, layout: Layout) -> DTensor:
        """Return random indices below *n*, of *shape*. Collective for many indices without replacement."""
        count = int(np.prod(shape, dtype=np.intp))
        if replace and weights is None:
            bound = max(1, n)  # n is 0 only if NumPy has checked that none is drawn
            return self.integers(bound, size=shape, layout=layout)
        if replace:
            cumulative_weights = np.cumsum(np.asarray(weights, np.float64))
            uniform_draws = self._draw("random", (), shape, layout)
            cumulative_weights /= cumulative_weights[-1]
            return mapped(
                lambda block: np.asarray(np.searchsorted(cumulative_weights, block, "right")),
                uniform_draws,
                dtype=_INDEX,
            )
        if count > n or (weights is not None and count > np.count_nonzero(weights)):
            source = "a" if count > n else "the entries of p that are not 0"
            raise ValueError(f"Cannot take a larger sample than population when replace is False: {count} of {source}")
        if count <= n // _SMALL_CHOICE_DIVISOR:
            index_array = self._next()(0).choice(n, count, False, weights)
            return distribute(np.asarray(index_array).reshape(shape), layout)
        line_layout = Layout([_all_names(layout)], layout.mesh)
        order = (
            self._random_order((n,), line_layout)
            if weights is None
            else argsort(self._arrival_times(n, weights, line_layout), 0, "stable")
        )
        result = np.reshape(order[:count], shape)
        return relayout(result, layout)

    def _arrival_times(self, n: int, weights: Weights, layout: Layout) -> DTensor:
        """Return random arrival times of elements, with *weights* as rates: the first ones are a weighted choice."""
        keys: DTensor = self._draw("standard_exponential", (), n, layout)
        with np.errstate(divide="ignore"):
            return mapped(np.divide, keys, as_sharded(np.asarray(weights, np.float64), layout))


def _all_names(layout: Layout) -> Names:
    """Return the mesh dimensions that cut an index in *layout*, for an index of one axis."""
    return tuple(name for names in layout.axes for name in names)
