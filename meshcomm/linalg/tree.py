"""A tree of QR factorisations of a tall matrix, TSQR: R factors go up, and what Q is multiplied by comes down.

Each device factors its block of rows. One of `FAN` ranks stacks the R factors of all of them, and factors the stack;
and so on, up to one rank. It computes the small things, so that all devices get the same bits of them. Q stays as
reflectors, at each level: a product with it is made on the way down. So a level has an exchange of about n² elements
up, and one down.

Source: "Communication-optimal parallel and sequential QR and LU factorizations" (Demmel et al., 2012).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import mapped, on_blocks
from meshcomm.blocks.small import agree_on_result
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.linalg.reflectors import Reflectors, arithmetic, last_rows, signs

FAN = 4
"""R factors that a rank stacks and factors. A large number means few exchanges, and much work that one rank does."""


class Top(NamedTuple):
    """Results at the root of the tree: the R factor, and with a right side b ``Q^H b`` and the residuals.

    *rest* are the squares of the rows of ``Q^H b`` that belong to no row of R, added up for each column. *signs*, if
    needed, turn the rows of R into those of NumPy.
    """

    r: Array
    right: Array
    rest: Array
    signs: Array


Small: TypeAlias = tuple[Array, ...]


class DeviceResult(NamedTuple):
    """A result for all devices: its shape, and whether it is real for a complex matrix, too."""

    shape: Shape
    real: bool = False


Work: TypeAlias = Callable[[Top], Small]
"""A function of R. It returns the matrix to multiply Q by, and arrays for all devices."""


def cut_along(t: DTensor, axis: int) -> DTensor:
    """Return *t* cut along an axis, by all mesh dimensions that cut it. Collective over the mesh if it has to move."""
    names = t.layout.sharding_dims
    if t.layout.dims_along(axis) == names:
        return t
    return relaid(t, t.layout.only([]).replace(axis, names).axes, "linalg")


class _Level(NamedTuple):
    """The ranks of a level of the tree, and the rows of the R factors that each of them stacks.

    A stack has no rows of zeros: Q would have elements there if columns depend on each other, which no block gets.
    """

    ranks: list[int]
    rows: list[list[int]]


@lru_cache(maxsize=256)
def _levels(layout: Layout, shape: Shape) -> list[_Level]:
    """Return the levels above the blocks of a matrix of *shape* that is cut along its rows.

    >>> from meshcomm import Mesh
    >>> for level in _levels(Layout(["x", "unsharded"], Mesh([0, 10, 20, 30, 40, 50], [("x", 6)])), (16, 5)):
    ...     print(level.ranks, level.rows)
    [0, 30] [[3, 3, 3], [3, 2, 2]]
    [0] [[5, 5]]
    """
    n, stack = shape[1], layout.take([0]).usual_cut(0)
    first = dict[int, int]()  # device of each block
    for device in range(layout.mesh.size):
        first.setdefault(stack.block_numbers(device)[0], device)
    devices = [first[number] for number in sorted(first)]
    holders = [layout.mesh.ranks[device] for device in devices]
    rows = [min(n, layout.block_shape(shape, device)[0]) for device in devices]
    levels: list[_Level] = []
    while len(holders) > 1 or not levels:
        groups = np.array_split(np.arange(len(holders)), -(-len(holders) // FAN))  # as a relayout cuts the stack
        levels.append(_Level([holders[group[0]] for group in groups], [[rows[i] for i in group] for group in groups]))
        holders, rows = levels[-1].ranks, [min(n, sum(rows)) for rows in levels[-1].rows]
    return levels


class _Elimination(NamedTuple):
    """The rows of the R factors that a rank stacked, and how it factored them: one R factor stays as it is."""

    rows: list[int]
    reflectors: Reflectors | None

    def times(self, matrix: Array) -> Array:
        """Return the product of this Q and a matrix."""
        return matrix if self.reflectors is None else self.reflectors.times(matrix)


class TallMatrix:
    """A matrix with at least as many rows as columns, which goes up the tree, and the results that come down.

    *signed* says whether the root needs the signs of NumPy's R.

    A bundle goes up: an R factor, the rows of ``Q^H b`` beside R, and below them a row with the result of `last_rows`
    and with the squares of the other rows of ``Q^H b``.
    """

    def __init__(self, operation: str, t: DTensor, *, signed: bool = False) -> None:
        self._operation, self._signed, self.shape, self._dtype = f"linalg.{operation}", signed, t.shape, t.dtype
        self._t, self._mesh, self._kind = cut_along(t, 0), t.mesh, arithmetic(t.dtype)
        self._call = f"{self._operation} of {t.shape} {t.dtype} in {self._t.layout.specs_text}"
        self._rows = self._t.layout.axes[0]
        self._layouts = [Layout([tuple(self._rows), (), ()], self._mesh)]
        self._levels = _levels(self._t.layout, t.shape)
        for level in self._levels:
            mesh = self._mesh.of_ranks(level.ranks, [("group", len(level.ranks))])
            self._layouts.append(Layout([("group",), (), ()], mesh))
        self._root = self._mesh.ranks.index(self._layouts[-1].mesh.ranks[0])
        self._path: list[_Elimination] = []  # what this rank did at each of its levels

    def climb(self, b: DTensor | None = None) -> None:
        """Factor the blocks, and then the factors, up to the last rank. Collective over the mesh."""
        right = None if b is None else relaid(b, (self._rows, ()), self._operation, self._mesh)
        n, first = self.shape[1], self._layouts[0]
        shape = n + 1, n + (0 if b is None else b.shape[1])

        def factored() -> DTensor:
            blocks = self._t, *([] if right is None else [right])
            whole = first.num_shards(0), *shape
            return mapped(self._of_block, *blocks, layout=first, shape=whole, dtype=self._kind)

        self._bundles = agree_on_result(self._operation, self._mesh, self._call, factored)
        for level, above in zip(self._levels, self._layouts[1:], strict=True):
            merge = partial(self._merged_bundle, level.rows[above.mesh.rank or 0])
            self._bundles = mapped(merge, relayout(self._bundles, above), shape=(above.num_shards(0), *shape))

    def descend(self, work: Work, columns: int, results: Sequence[DeviceResult]) -> tuple[DTensor, list[DTensor]]:
        """Return the product of Q and the matrix that *work* returns first, and its other results. Collective.

        Parameters
        ----------
        work: runs on the last rank; all ranks raise its ``LinAlgError``
        columns: columns of the matrix, which has as many rows as R; 0 if there is no matrix
        results: the other results, which are replicated
        """
        sizes = [self.shape[1] * columns, *(prod(result.shape) for result in results), 1]
        size, first = sum(sizes), self._first_rows()
        layouts = [layout.take([0, 1]) for layout in self._layouts]

        def worked() -> DTensor:
            run = partial(self._at_top, work, first, size)
            return mapped(run, self._bundles, layout=layouts[-1], shape=(1, size))

        flat = agree_on_result(self._operation, self._mesh, self._call, worked)
        for level in range(len(layouts) - 1, 0, -1):
            spread = partial(self._spread, level, columns)
            flat = relayout(mapped(spread, flat, shape=(layouts[level - 1].num_shards(0), size)), layouts[level - 1])
        if on_blocks(lambda block: bool(block[0, -1]), flat):
            raise np.linalg.LinAlgError("SVD did not converge")
        ends = np.cumsum(sizes).tolist()
        small = [self._small_result(flat, *piece) for piece in zip(ends, ends[1:], results, strict=False)]
        return self._product(flat, columns), small

    def at_root(self, t: DTensor) -> DTensor:
        """Return *t* on the last rank of the tree only. Collective over the mesh."""
        return relayout(t, Layout.replicated(self._layouts[-1].mesh, t.ndim))

    def _first_rows(self) -> Array | None:
        """Return the first rows of the matrix on the last rank, if signs need them. Collective if they move."""
        layout, n = self._t.layout, self.shape[1]
        if not self._signed or layout.num_shards(0) == 1:
            return None
        there = np.array_equal(np.asarray(layout.global_indices(self.shape, self._root, 0))[:n], np.arange(n))
        return on_blocks(lambda rows: rows[:n].astype(self._kind), self._t if there else self.at_root(self._t[:n]))

    def _product(self, flat: DTensor, columns: int) -> DTensor:
        """Return the product of Q and a matrix, of which this rank has the rows that came down to it."""
        n = self.shape[1]

        def product(block: Array) -> Array:
            return self._path[0].times(block[0, : n * columns].reshape(n, columns)).astype(self._dtype, copy=False)

        layout = Layout([self._rows, ()], self._mesh)
        return mapped(product, flat, layout=layout, shape=(self.shape[0], columns), dtype=self._dtype)

    def _small_result(self, flat: DTensor, start: int, stop: int, result: DeviceResult) -> DTensor:
        dtype = self._dtype.type(0).real.dtype if result.real else self._dtype

        def piece(block: Array) -> Array:
            values = block[0, start:stop]
            return np.array((values.real if result.real else values).reshape(result.shape), dtype)

        layout = Layout.replicated(self._mesh, len(result.shape))
        return mapped(piece, flat, layout=layout, shape=result.shape, dtype=dtype)

    # -- on one rank --------------------------------------------------------------------------------------------------

    def _of_block(self, block: Array, right: Array | None = None) -> Array:
        reflectors = Reflectors(block)
        self._path.append(_Elimination([len(block)], reflectors))
        numbers = np.empty(0, int)
        if self._signed:
            numbers = last_rows(block, self._t.layout.global_indices(self.shape, None, 0), self.shape[1])
        b = np.empty((len(block), 0)) if right is None else right.astype(self._kind)
        return self._bundle(reflectors, b, np.zeros(b.shape[1]), numbers)

    def _merged_bundle(self, rows: list[int], stack: Array) -> Array:
        """Return the bundle of a stack of bundles."""
        if len(stack) == 1:
            self._path.append(_Elimination(rows, None))
            return stack
        n = self.shape[1]
        stacked, last = np.concatenate([factor[:k] for factor, k in zip(stack, rows, strict=True)]), stack[:, n]
        reflectors = Reflectors(stacked[:, :n])
        self._path.append(_Elimination(rows, reflectors))
        ends = last[:, :n].real.max(axis=0) if self._signed else np.empty(0)
        return self._bundle(reflectors, stacked[:, n:], last[:, n:].sum(axis=0), ends)

    def _bundle(self, reflectors: Reflectors, b: Array, rest: Array, ends: Array) -> Array:
        n = self.shape[1]
        bundle = np.zeros((n + 1, n + b.shape[1]), self._kind)
        bundle[: len(reflectors.r), :n] = reflectors.r
        bundle[n, : len(ends)] = ends
        if b.shape[1]:
            top, more = reflectors.adjoint_times(b)
            bundle[: len(top), n:], bundle[n, n:] = top, rest + more
        return bundle[None]

    def _at_top(self, work: Work, first: Array | None, size: int, bundles: Array) -> Array:
        """Return the flat results of *work*, and 0; or ones if LAPACK has an error."""
        n, bundle = self.shape[1], bundles[0]
        r, last = bundle[:n, :n], bundle[n]
        signs_of_rows = np.ones(n) if first is None else signs(r, first, last[:n].real.astype(int))
        try:
            results = work(Top(r, bundle[:n, n:], last[n:].real, signs_of_rows))
        except np.linalg.LinAlgError:
            return np.ones((1, size), self._kind)
        return np.concatenate([*map(np.ravel, results), [0]]).astype(self._kind, copy=False)[None]

    def _spread(self, level: int, columns: int, flats: Array) -> Array:
        """Return the data for each rank of the level below: its rows of the product, and the other results."""
        step, size, flat = self._path[level], self.shape[1] * columns, flats[0]
        flats_below = np.empty((len(step.rows), len(flat)), self._kind)
        flats_below[:] = flat  # the matrix in front is overwritten
        product = step.times(flat[:size].reshape(self.shape[1], columns))
        for row, matrix in zip(flats_below, np.split(product, np.cumsum(step.rows)[:-1]), strict=True):
            row[: matrix.size] = matrix.ravel()
        return flats_below
