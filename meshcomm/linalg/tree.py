"""A tree of QR factorisations of a tall matrix, TSQR: R factors go up, and the matrix to multiply by Q comes down.

Each device factors its block of rows. One of each `FAN` ranks stacks their R factors, and factors the stack; and so
on, up to one rank, the root. The root computes the small results, so that all devices get the same bits. Each level
keeps its part of Q as reflectors, and applies them on the way down. So a level has an exchange of about n² elements
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
"""Number of R factors that a rank stacks and factors. A larger one means fewer exchanges and more work on one rank."""


class RootResults(NamedTuple):
    """Results at the root of the tree.

    Parameters
    ----------
    r: the R factor
    right: rows of ``Q^H b`` for the rows of R, if there is a right side b
    rest: for each column of b, the sum of the squares of the other rows of ``Q^H b``: the squared residual
    signs: signs that turn the rows of R into those of NumPy, if requested; else ones
    """

    r: Array
    right: Array
    rest: Array
    signs: Array


Small: TypeAlias = tuple[Array, ...]


class DeviceResult(NamedTuple):
    """A result for all devices: its shape, and whether it is real even for a complex matrix."""

    shape: Shape
    real: bool = False


RootFunction: TypeAlias = Callable[[RootResults], Small]
"""A function of the results at the root. It returns the matrix to multiply Q by, and arrays for all devices."""


def cut_along(t: DTensor, axis: int) -> DTensor:
    """Return *t* cut along an axis, by all mesh dimensions that cut it. Collective over the mesh if it has to move."""
    names = t.layout.sharding_dims
    if t.layout.dims_along(axis) == names:
        return t
    return relaid(t, t.layout.only([]).replace(axis, names).axes, "linalg")


class _Level(NamedTuple):
    """The ranks of a level of the tree, and for each rank the numbers of rows of the R factors that it stacks.

    A stack has no padding rows of zeros: for dependent columns, Q would have elements in them, which no block gets.
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
    n, stack = shape[1], layout.take([0]).default_cut(0)
    device_of_block = dict[int, int]()  # device of each block
    for device in range(layout.mesh.size):
        device_of_block.setdefault(stack.block_numbers(device)[0], device)
    devices = [device_of_block[number] for number in sorted(device_of_block)]
    holders = [layout.mesh.ranks[device] for device in devices]
    rows = [min(n, layout.block_shape(shape, device)[0]) for device in devices]
    levels: list[_Level] = []
    while len(holders) > 1 or not levels:
        # As a relayout cuts the stack.
        groups = np.array_split(np.arange(len(holders)), -(-len(holders) // FAN))
        levels.append(_Level([holders[group[0]] for group in groups], [[rows[i] for i in group] for group in groups]))
        holders, rows = levels[-1].ranks, [min(n, sum(rows)) for rows in levels[-1].rows]
    return levels


class _Elimination(NamedTuple):
    """The numbers of rows of the R factors that a rank stacked, and the reflectors; None for a single R factor."""

    rows: list[int]
    reflectors: Reflectors | None

    def times(self, matrix: Array) -> Array:
        """Return the product of this Q and a matrix."""
        return matrix if self.reflectors is None else self.reflectors.times(matrix)


class TallMatrix:
    """A matrix with at least as many rows as columns, its way up the tree, and the way of the results down.

    *signed* is whether the root needs the signs of NumPy's R.

    A bundle goes up: an R factor, right of it the rows of ``Q^H b``, and below them one row, the footer, with the
    result of `last_rows`, and right of it the summed squares of the other rows of ``Q^H b``.
    """

    def __init__(self, operation: str, t: DTensor, *, signed: bool = False) -> None:
        self._operation, self._signed, self.shape, self._dtype = f"linalg.{operation}", signed, t.shape, t.dtype
        self._t, self._mesh, self._work_dtype = cut_along(t, 0), t.mesh, arithmetic(t.dtype)
        self._call = f"{self._operation} of {t.shape} {t.dtype} in {self._t.layout.specs_text}"
        self._rows = self._t.layout.axes[0]
        self._layouts = [Layout([tuple(self._rows), (), ()], self._mesh)]
        self._levels = _levels(self._t.layout, t.shape)
        for level in self._levels:
            mesh = self._mesh.of_ranks(level.ranks, [("group", len(level.ranks))])
            self._layouts.append(Layout([("group",), (), ()], mesh))
        self._root = self._mesh.ranks.index(self._layouts[-1].mesh.ranks[0])
        self._path: list[_Elimination] = []  # of this rank, at each of its levels

    def climb(self, b: DTensor | None = None) -> None:
        """Factor the blocks, and then the stacked R factors, up to the root. Collective over the mesh."""
        rhs = None if b is None else relaid(b, (self._rows, ()), self._operation, self._mesh)
        n, block_layout = self.shape[1], self._layouts[0]
        shape = n + 1, n + (0 if b is None else b.shape[1])

        def factor_blocks() -> DTensor:
            blocks = self._t, *([] if rhs is None else [rhs])
            bundles_shape = block_layout.num_shards(0), *shape
            return mapped(self._of_block, *blocks, layout=block_layout, shape=bundles_shape, dtype=self._work_dtype)

        self._bundles = agree_on_result(self._operation, self._mesh, self._call, factor_blocks)
        for level, layout in zip(self._levels, self._layouts[1:], strict=True):
            merge = partial(self._merged_bundle, level.rows[layout.mesh.rank or 0])
            self._bundles = mapped(merge, relayout(self._bundles, layout), shape=(layout.num_shards(0), *shape))

    def descend(
        self, work: RootFunction, columns: int, results: Sequence[DeviceResult]
    ) -> tuple[DTensor, list[DTensor]]:
        """Return the product of Q and the matrix that *work* returns first, and its other results. Collective.

        Parameters
        ----------
        work: function that runs on the root; all ranks raise its ``LinAlgError``
        columns: number of columns of the matrix, which has as many rows as R; 0 if there is no matrix
        results: shapes of the other results, which are replicated
        """
        sizes = [self.shape[1] * columns, *(prod(result.shape) for result in results), 1]
        size, first_rows = sum(sizes), self._first_rows()
        layouts = [layout.take([0, 1]) for layout in self._layouts]

        def compute_top() -> DTensor:
            run = partial(self._at_top, work, first_rows, size)
            return mapped(run, self._bundles, layout=layouts[-1], shape=(1, size))

        flat = agree_on_result(self._operation, self._mesh, self._call, compute_top)
        for level in range(len(layouts) - 1, 0, -1):
            spread = partial(self._spread, level, columns)
            flat = relayout(mapped(spread, flat, shape=(layouts[level - 1].num_shards(0), size)), layouts[level - 1])
        if on_blocks(lambda block: bool(block[0, -1]), flat):
            raise np.linalg.LinAlgError("SVD did not converge")
        ends = np.cumsum(sizes).tolist()
        other_results = [self._small_result(flat, *piece) for piece in zip(ends, ends[1:], results, strict=False)]
        return self._product(flat, columns), other_results

    def at_root(self, t: DTensor) -> DTensor:
        """Return *t* on the root only. Collective over the mesh."""
        return relayout(t, Layout.replicated(self._layouts[-1].mesh, t.ndim))

    def _first_rows(self) -> Array | None:
        """Return the first n rows of the matrix on the root, if the signs need them. Collective if they move."""
        layout, n = self._t.layout, self.shape[1]
        if not self._signed or layout.num_shards(0) == 1:
            return None
        is_local = np.array_equal(np.asarray(layout.global_indices(self.shape, self._root, 0))[:n], np.arange(n))
        return on_blocks(lambda x: x[:n].astype(self._work_dtype), self._t if is_local else self.at_root(self._t[:n]))

    def _product(self, flat: DTensor, columns: int) -> DTensor:
        """Return the product of Q and a matrix, from the rows in *flat* that came down to this rank."""
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

    def _of_block(self, block: Array, rhs: Array | None = None) -> Array:
        reflectors = Reflectors(block)
        self._path.append(_Elimination([len(block)], reflectors))
        numbers = np.empty(0, int)
        if self._signed:
            numbers = last_rows(block, self._t.layout.global_indices(self.shape, None, 0), self.shape[1])
        b = np.empty((len(block), 0)) if rhs is None else rhs.astype(self._work_dtype)
        return self._bundle(reflectors, b, np.zeros(b.shape[1]), numbers)

    def _merged_bundle(self, rows: list[int], stack: Array) -> Array:
        """Return the bundle of a stack of bundles."""
        if len(stack) == 1:
            self._path.append(_Elimination(rows, None))
            return stack
        n = self.shape[1]
        stacked, footers = np.concatenate([factor[:k] for factor, k in zip(stack, rows, strict=True)]), stack[:, n]
        reflectors = Reflectors(stacked[:, :n])
        self._path.append(_Elimination(rows, reflectors))
        ends = footers[:, :n].real.max(axis=0) if self._signed else np.empty(0)
        return self._bundle(reflectors, stacked[:, n:], footers[:, n:].sum(axis=0), ends)

    def _bundle(self, reflectors: Reflectors, b: Array, sums: Array, ends: Array) -> Array:
        n = self.shape[1]
        bundle = np.zeros((n + 1, n + b.shape[1]), self._work_dtype)
        bundle[: len(reflectors.r), :n] = reflectors.r
        bundle[n, : len(ends)] = ends
        if b.shape[1]:
            top, added_sums = reflectors.adjoint_times(b)
            bundle[: len(top), n:], bundle[n, n:] = top, sums + added_sums
        return bundle[None]

    def _at_top(self, work: RootFunction, first_rows: Array | None, size: int, bundles: Array) -> Array:
        """Return the flat results of *work*, and 0; or ones if LAPACK has an error."""
        n, bundle = self.shape[1], bundles[0]
        r, footer = bundle[:n, :n], bundle[n]
        signs_of_rows = np.ones(n) if first_rows is None else signs(r, first_rows, footer[:n].real.astype(int))
        try:
            results = work(RootResults(r, bundle[:n, n:], footer[n:].real, signs_of_rows))
        except np.linalg.LinAlgError:
            return np.ones((1, size), self._work_dtype)
        return np.concatenate([*map(np.ravel, results), [0]]).astype(self._work_dtype, copy=False)[None]

    def _spread(self, level: int, columns: int, flats: Array) -> Array:
        """Return the data for each rank of the level below: its rows of the product, and the other results."""
        step, size, flat = self._path[level], self.shape[1] * columns, flats[0]
        flats_below = np.empty((len(step.rows), len(flat)), self._work_dtype)
        flats_below[:] = flat  # the leading matrix is overwritten below
        product = step.times(flat[:size].reshape(self.shape[1], columns))
        for row, matrix in zip(flats_below, np.split(product, np.cumsum(step.rows)[:-1]), strict=True):
            row[: matrix.size] = matrix.ravel()
        return flats_below
