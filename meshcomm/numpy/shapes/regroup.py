"""Reshapes: which layout the result has, and what has to move before its blocks are blocks of the source.

NumPy's reshape keeps elements in row-major order. So axes fall into groups, source axes on one side and target axes on
the other, with equal products: a reshape never mixes two groups. Within a group all elements lie on one flat axis.

Some layouts of the axes of a group are layouts of this flat axis too: the memory of a block is the same in both. An
axis in consecutive blocks gives consecutive flat blocks, if all axes after it are whole and those before it have at
most one element in each block. An axis that is cut evenly, or cyclic with equal blocks, gives cyclic flat blocks, if
all axes before and after it are whole. For example, 6 x 4 elements, one axis cut in two:

    [x, unsharded]   flat: Cuts("x", (0, 12, 24))     as 2 x 3 x 4: [x, unsharded, unsharded]
    [unsharded, x]   flat: Cyclic("x", 2)             as 6 x 2 x 2: [unsharded, x, unsharded]

If the flat layout of the source is one of the target axes, nothing moves. Else the flat tensor is relaid.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._types import Names, Shape
from meshcomm.core.layouts.cyclic import AnyCut
from meshcomm.core.layouts.partition import Cut
from meshcomm.core.layouts.specs import Cuts, Cyclic, cut_of

Specs: TypeAlias = tuple[Names, ...]
Sizes: TypeAlias = tuple[tuple[str, int], ...]
"""The mesh dimensions, each with its size."""


class AxisGroup(NamedTuple):
    """Source axes and target axes that hold the same elements, as slices of all axes."""

    source: slice
    target: slice


class Regrouping(NamedTuple):
    """How a tensor is reshaped, by four layouts.

    Relay the source to *start*. Its block is then also a block of a tensor of shape *flat* in the layout *before*.
    Relay that to *after*. Its block is then also a block of the result in the layout *result*. Nothing moves in a step
    between equal layouts.
    """

    start: Specs
    flat: Shape
    before: Specs
    after: Specs
    result: Specs

    def moves(self, axes: Specs) -> bool:
        """Return whether elements of a source with the sharding specs *axes* have to move."""
        return self.start != axes or self.before != self.after


@lru_cache(maxsize=1024)
def regrouping(
    axes: Specs, sizes: Sizes, source: Shape, target: Shape, wanted_specs: Specs | None = None
) -> Regrouping:
    """Return how to reshape a tensor of shape *source* to *target*, a shape with equally many elements.

    Parameters
    ----------
    axes: sharding specs of the source
    sizes: sizes of the mesh dimensions
    source, target: shapes before and after
    wanted_specs: preferred sharding specs of the result, if the shapes allow them; by default so that little moves

    >>> regrouping((("x",), ()), (("x", 2),), (6, 4), (24,)).result
    (('x',),)
    """
    blocks = dict(sizes)
    if 0 in source:
        return _without_elements(axes, source, target)
    start, result = list(axes), list[Names]()
    before, after = list[Names](), list[Names]()
    groups = list(groups_of(source, target))
    for group in groups:
        source_lengths, target_lengths = source[group.source], target[group.target]
        spec = flat_spec(source_lengths, axes[group.source], blocks)
        specs = None if spec is None else split_spec(spec, target_lengths, blocks)
        if spec is None:
            start[group.source] = chosen_specs(source_lengths, _names_of(axes[group.source]), blocks)
            spec = _flat_spec(source_lengths, tuple(start[group.source]), blocks)
        before.append(spec)
        if specs is None:
            specs = chosen_specs(target_lengths, tuple(spec), blocks)
            spec = _flat_spec(target_lengths, specs, blocks)
        after.append(spec)
        result.extend(specs)
    if wanted_specs is not None:
        wanted_flat_specs = [flat_spec(target[group.target], wanted_specs[group.target], blocks) for group in groups]
        if all(spec is not None for spec in wanted_flat_specs):
            after, result = [spec for spec in wanted_flat_specs if spec is not None], list(wanted_specs)
    shape = tuple(prod(source[group.source]) for group in groups)
    return Regrouping(tuple(start), shape, tuple(before), tuple(after), tuple(result))


def _without_elements(axes: Specs, source: Shape, target: Shape) -> Regrouping:
    """Return how to reshape a tensor without elements: leading axes of equal lengths stay sharded, nothing moves."""
    same_count = next(
        (a for a, (m, n) in enumerate(zip(source, target, strict=False)) if m != n), min(map(len, (source, target)))
    )
    return Regrouping(axes, (0,), ((),), ((),), axes[:same_count] + ((),) * (len(target) - same_count))


def groups_of(source: Shape, target: Shape) -> Iterator[AxisGroup]:
    """Yield the groups of two shapes with equally many elements, at least one.

    >>> for group in groups_of((6, 4, 5), (2, 3, 20)):
    ...     print((6, 4, 5)[group.source], (2, 3, 20)[group.target])
    (6,) (2, 3)
    (4, 5) (20,)
    """
    bounds, i, j = [], 0, 0
    while i < len(source) and j < len(target):
        group_start, m, n = (i, j), source[i], target[j]
        while m != n:
            if m < n:
                i += 1
                m *= source[i]
            else:
                j += 1
                n *= target[j]
        i, j = i + 1, j + 1
        bounds.append((group_start, (i, j)))
    group_start = bounds.pop()[0] if bounds else (0, 0)  # axes of length 1 may remain: they belong to the last group
    for (i, j), (k, m) in [*bounds, (group_start, (len(source), len(target)))]:
        yield AxisGroup(slice(i, k), slice(j, m))


# -- groups of axes, and their flat axis ------------------------------------------------------------------------------


def flat_spec(lengths: Shape, specs: Specs, sizes: dict[str, int]) -> Names | None:
    """Return the spec of the flat axis by which blocks have the same elements in the same order, or None.

    >>> flat_spec((6, 4), (("x",), ()), {"x": 4}), flat_spec((6, 4), ((), ("x",)), {"x": 2})
    (Cuts('x', (0, 8, 16, 20, 24)), Cyclic('x', 2))
    """
    names = _names_of(specs)
    if not names:
        return ()
    nonempty_specs = [spec for spec in specs if spec]
    if len(nonempty_specs) == 1 and all(n == 1 or spec for spec, n in zip(specs, lengths, strict=True)):
        return nonempty_specs[0]
    cuts = [cut_of(spec, n, _block_count(spec, sizes)) for spec, n in zip(specs, lengths, strict=True)]
    last_cut_axis = max((a for a, cut in enumerate(cuts) if cut.blocks > 1 and cut.length > 1), default=-1)
    if last_cut_axis < 0 and all(cut.blocks == 1 for cut in cuts):
        return names
    if _is_consecutive(cuts[last_cut_axis]) and all(
        _is_consecutive(cut) and cut.longest <= 1 for cut in cuts[: max(last_cut_axis, 0)]
    ):
        block_lengths = [cut.lengths(np.arange(cut.blocks, dtype=np.intp)).tolist() for cut in cuts]
        return _consecutive_spec(names, list(accumulate(map(prod, product(*block_lengths)), initial=0)))
    if any(cut.blocks > 1 for a, cut in enumerate(cuts) if a != last_cut_axis):
        return None
    period, inner_size = _whole_period(cuts[last_cut_axis]), prod(lengths[last_cut_axis + 1 :])
    if period is None and prod(lengths[:last_cut_axis]) > 1:
        return None
    cut = cuts[last_cut_axis]
    if cut.is_consecutive:
        return Cyclic(names, cut.longest * inner_size)
    return Cyclic(names, cut.block * inner_size, cut.offset)


def _flat_spec(lengths: Shape, specs: Specs, sizes: dict[str, int]) -> Names:
    """Return the spec of the flat axis for specs that `chosen_specs` chose: these have one."""
    spec = flat_spec(lengths, specs, sizes)
    assert spec is not None
    return spec


def split_spec(spec: Names, lengths: Shape, sizes: dict[str, int]) -> Specs | None:
    """Return specs of axes of these *lengths* with the same blocks as a flat axis with *spec*, or None.

    >>> split_spec(Cuts("x", (0, 8, 24)), (6, 4), {"x": 2}), split_spec(("x",), (3, 4), {"x": 2})
    ((Cuts('x', (0, 2, 6)), ()), None)
    >>> split_spec(("x", "y"), (2, 2, 5), {"x": 2, "y": 2})
    (('x',), ('y',), ())
    """
    if not spec:
        return ((),) * len(lengths)
    axes = [a for a, n in enumerate(lengths) if n > 1]
    if len(axes) < 2:
        blocks = _block_count(spec, sizes)
        return _one_sharded(spec, axes[0] if axes else 0, len(lengths)) if lengths else None if blocks > 1 else ()
    length, blocks = prod(lengths), _block_count(spec, sizes)
    cut = cut_of(spec, length, blocks)
    if cut.is_consecutive or _is_consecutive(cut):
        bounds = [0, *accumulate(cut.lengths(np.arange(blocks, dtype=np.intp)).tolist())]
        stride = length // lengths[axes[0]]
        if all(bound % stride == 0 for bound in bounds):
            return _one_sharded(_consecutive_spec(tuple(spec), [b // stride for b in bounds]), axes[0], len(lengths))
        return (
            _specs_on_several_axes(tuple(spec), lengths, sizes)
            if length % blocks == 0 and cut == Cut(length, blocks)
            else None
        )
    for axis in axes:
        stride = prod(lengths[axis + 1 :])
        block, remainder = divmod(cut.block, stride)
        if remainder == 0 and (axis == axes[0] or lengths[axis] % (block * blocks) == 0):
            is_even = lengths[axis] == block * blocks and cut.offset == 0
            return _one_sharded(tuple(spec) if is_even else Cyclic(tuple(spec), block, cut.offset), axis, len(lengths))
    return None


def _specs_on_several_axes(names: Names, lengths: Shape, sizes: dict[str, int]) -> Specs | None:
    """Return specs in which the first mesh dimensions cut the first axis into single elements, the rest other axes.

    None if there are no such specs.
    """
    for count in range(1, len(names)):
        if _block_count(names[:count], sizes) == lengths[0]:
            other_specs = split_spec(names[count:], lengths[1:], sizes)
            return None if other_specs is None else (names[:count], *other_specs)
    if lengths[0] > 1:
        return None
    other_specs = split_spec(names, lengths[1:], sizes)
    return None if other_specs is None else ((), *other_specs)


def chosen_specs(lengths: Shape, names: Names, sizes: dict[str, int]) -> Specs:
    """Return specs with all *names* on one axis, in the usual cut, so that there is a spec of the flat axis as well.

    It is the first axis of 2 elements or more, if it has elements for all devices. Else it is the first of these axes
    that is cut evenly, if there is one.

    >>> chosen_specs((3, 4, 4), ("x",), {"x": 2}), chosen_specs((3, 4, 4), ("x",), {"x": 4})
    ((('x',), (), ()), ((), ('x',), ()))
    """
    long_axes = [a for a, n in enumerate(lengths) if n > 1] or [0]
    if not lengths:
        return ()
    blocks = _block_count(names, sizes)
    first = long_axes[0]
    even_axes = (a for a in long_axes if lengths[a] % blocks == 0)
    return _one_sharded(names, first if lengths[first] >= blocks else next(even_axes, first), len(lengths))


def _one_sharded(spec: Names, axis: int, ndim: int) -> Specs:
    return tuple(spec if a == axis else () for a in range(ndim))


def _names_of(specs: Specs) -> Names:
    return tuple(name for spec in specs for name in spec)


def _block_count(names: Names, sizes: dict[str, int]) -> int:
    return prod(sizes[name] for name in names)


def _is_consecutive(cut: AnyCut) -> bool:
    """Return whether each device holds one interval of elements, in the order of the devices."""
    return cut.is_consecutive or cut.length <= cut.block


def _whole_period(cut: AnyCut) -> int | None:
    """Return the number of elements after which blocks repeat, if it divides the length of the axis; else None."""
    if cut.is_consecutive:
        return cut.length if cut == Cut(cut.length, cut.blocks) and cut.length % cut.blocks == 0 else None
    return cut.period if cut.length % cut.period == 0 else None


def _consecutive_spec(names: Names, boundaries: Sequence[int]) -> Names:
    """Return the spec of an axis that is cut at these boundaries: the plain names, if that is the usual cut."""
    return Cuts(names, boundaries).canonical(len(boundaries) - 1)
