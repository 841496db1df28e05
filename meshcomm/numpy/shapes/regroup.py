"""Reshapes: which layout the result has, and what has to move before its blocks are blocks of the source.

NumPy's reshape keeps elements in row-major order. So axes fall into groups, source axes on one side and target axes on
the other, with equal products: a reshape never mixes two groups. Within a group all elements lie on one flat axis.

Some layouts of the axes of a group are layouts of this flat axis too: the memory of a block is the same in both. An
axis that is cut into consecutive blocks, with whole axes after it and no elements beside it before it, gives
consecutive flat blocks. An axis that is cut evenly, or cyclic with equal blocks, gives cyclic flat blocks, whatever
whole axes are before it. For example, 6 x 4 elements, rows cut in two:

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
    """Source axes and target axes that hold the same elements: from, and up to, these numbers."""

    source: slice
    target: slice


class Regrouping(NamedTuple):
    """How a tensor is reshaped: five layouts, of which neighbours are equal where nothing moves.

    Relay the source to *start*, take its block as one in *before* of a tensor of shape *flat*, relay that to *after*,
    and take its block as one in *result*.
    """

    start: Specs
    flat: Shape
    before: Specs
    after: Specs
    result: Specs

    def moves(self, axes: Specs) -> bool:
        """Return whether elements of a source that is sharded as *axes* say have to move."""
        return self.start != axes or self.before != self.after


@lru_cache(maxsize=1024)
def regrouping(axes: Specs, sizes: Sizes, source: Shape, target: Shape, wanted: Specs | None = None) -> Regrouping:
    """Return how to reshape a tensor of shape *source* to *target*, a shape with as many elements.

    Parameters
    ----------
    axes: sharding specs of the source
    sizes: sizes of the mesh dimensions
    source, target: shapes before and after
    wanted: sharding specs of the result, from which `result` may still differ; by default so that little moves

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
        lengths, into = source[group.source], target[group.target]
        flat = flat_spec(lengths, axes[group.source], blocks)
        specs = None if flat is None else split_spec(flat, into, blocks)
        if flat is None:
            start[group.source] = chosen_specs(lengths, _names_of(axes[group.source]), blocks)
            flat = _flat_spec(lengths, tuple(start[group.source]), blocks)
        before.append(flat)
        if specs is None:
            specs = chosen_specs(into, tuple(flat), blocks)
            flat = _flat_spec(into, specs, blocks)
        after.append(flat)
        result.extend(specs)
    if wanted is not None:
        flats = [flat_spec(target[group.target], wanted[group.target], blocks) for group in groups]
        if all(flat is not None for flat in flats):
            after, result = [flat for flat in flats if flat is not None], list(wanted)
    shape = tuple(prod(source[group.source]) for group in groups)
    return Regrouping(tuple(start), shape, tuple(before), tuple(after), tuple(result))


def _without_elements(axes: Specs, source: Shape, target: Shape) -> Regrouping:
    """Return how to reshape a tensor without elements: leading axes of equal lengths stay sharded, nothing moves."""
    same = next(
        (a for a, (m, n) in enumerate(zip(source, target, strict=False)) if m != n), min(map(len, (source, target)))
    )
    return Regrouping(axes, (0,), ((),), ((),), axes[:same] + ((),) * (len(target) - same))


def groups_of(source: Shape, target: Shape) -> Iterator[AxisGroup]:
    """Yield the groups of two shapes with as many elements, which are not 0.

    >>> for group in groups_of((6, 4, 5), (2, 3, 20)):
    ...     print((6, 4, 5)[group.source], (2, 3, 20)[group.target])
    (6,) (2, 3)
    (4, 5) (20,)
    """
    bounds, i, j = [], 0, 0
    while i < len(source) and j < len(target):
        first, m, n = (i, j), source[i], target[j]
        while m != n:
            if m < n:
                i += 1
                m *= source[i]
            else:
                j += 1
                n *= target[j]
        i, j = i + 1, j + 1
        bounds.append((first, (i, j)))
    first = bounds.pop()[0] if bounds else (0, 0)  # axes of length 1 may be left: they belong to the last group
    for (i, j), (k, m) in [*bounds, (first, (len(source), len(target)))]:
        yield AxisGroup(slice(i, k), slice(j, m))


# -- groups of axes, and their flat axis ------------------------------------------------------------------------------


def flat_spec(lengths: Shape, specs: Specs, sizes: dict[str, int]) -> Names | None:
    """Return the spec of the flat axis in which blocks have the same elements in the same order; None if none has.

    >>> flat_spec((6, 4), (("x",), ()), {"x": 4}), flat_spec((6, 4), ((), ("x",)), {"x": 2})
    (Cuts('x', (0, 8, 16, 20, 24)), Cyclic('x', 2))
    """
    names = _names_of(specs)
    if not names:
        return ()
    named = [spec for spec in specs if spec]
    if len(named) == 1 and all(n == 1 or spec for spec, n in zip(specs, lengths, strict=True)):
        return named[0]
    cuts = [cut_of(spec, n, _block_count(spec, sizes)) for spec, n in zip(specs, lengths, strict=True)]
    last = max((a for a, cut in enumerate(cuts) if cut.blocks > 1 and cut.length > 1), default=-1)
    if last < 0 and all(cut.blocks == 1 for cut in cuts):
        return names
    if _is_consecutive(cuts[last]) and all(_is_consecutive(cut) and cut.longest <= 1 for cut in cuts[: max(last, 0)]):
        lengths_of_blocks = [cut.lengths(np.arange(cut.blocks, dtype=np.intp)).tolist() for cut in cuts]
        return _consecutive_spec(names, list(accumulate(map(prod, product(*lengths_of_blocks)), initial=0)))
    if any(cut.blocks > 1 for a, cut in enumerate(cuts) if a != last):
        return None
    period, inner = _cyclic_evenly(cuts[last]), prod(lengths[last + 1 :])
    if period is None and prod(lengths[:last]) > 1:
        return None
    cut = cuts[last]
    if cut.is_consecutive:
        return Cyclic(names, cut.longest * inner)
    return Cyclic(names, cut.block * inner, cut.offset)


def _flat_spec(lengths: Shape, chosen: Specs, sizes: dict[str, int]) -> Names:
    """Return the flat spec of specs that `chosen_specs` chose: they have one."""
    flat = flat_spec(lengths, chosen, sizes)
    assert flat is not None
    return flat


def split_spec(flat: Names, lengths: Shape, sizes: dict[str, int]) -> Specs | None:
    """Return the specs of axes of these *lengths* in which blocks are those of the *flat* axis; None if none has.

    >>> split_spec(Cuts("x", (0, 8, 24)), (6, 4), {"x": 2}), split_spec(("x",), (3, 4), {"x": 2})
    ((Cuts('x', (0, 2, 6)), ()), None)
    >>> split_spec(("x", "y"), (2, 2, 5), {"x": 2, "y": 2})
    (('x',), ('y',), ())
    """
    if not flat:
        return ((),) * len(lengths)
    long = [a for a, n in enumerate(lengths) if n > 1]
    if len(long) < 2:
        blocks = _block_count(flat, sizes)
        return _one_sharded(flat, long[0] if long else 0, len(lengths)) if lengths else None if blocks > 1 else ()
    length, blocks = prod(lengths), _block_count(flat, sizes)
    cut = cut_of(flat, length, blocks)
    if cut.is_consecutive or _is_consecutive(cut):
        bounds = [0, *accumulate(cut.lengths(np.arange(blocks, dtype=np.intp)).tolist())]
        inner = length // lengths[long[0]]
        if all(bound % inner == 0 for bound in bounds):
            return _one_sharded(_consecutive_spec(tuple(flat), [b // inner for b in bounds]), long[0], len(lengths))
        return (
            _over_several(tuple(flat), lengths, sizes) if length % blocks == 0 and cut == Cut(length, blocks) else None
        )
    for axis in long:
        inner = prod(lengths[axis + 1 :])
        block, rest = divmod(cut.block, inner)
        if rest == 0 and (axis == long[0] or lengths[axis] % (block * blocks) == 0):
            even = lengths[axis] == block * blocks and cut.offset == 0
            return _one_sharded(tuple(flat) if even else Cyclic(tuple(flat), block, cut.offset), axis, len(lengths))
    return None


def _over_several(names: Names, lengths: Shape, sizes: dict[str, int]) -> Specs | None:
    """Return specs in which the first mesh dimensions cut the first axis into single elements, the others the rest."""
    for count in range(1, len(names)):
        if _block_count(names[:count], sizes) == lengths[0]:
            rest = split_spec(names[count:], lengths[1:], sizes)
            return None if rest is None else (names[:count], *rest)
    if lengths[0] > 1:
        return None
    rest = split_spec(names, lengths[1:], sizes)
    return None if rest is None else ((), *rest)


def chosen_specs(lengths: Shape, names: Names, sizes: dict[str, int]) -> Specs:
    """Return specs with all *names* on one axis, cut by default, that are those of a flat axis as well.

    It is the first axis with elements for all devices, if it is cut evenly or nothing is before it; else the first.

    >>> chosen_specs((3, 4, 4), ("x",), {"x": 2}), chosen_specs((3, 4, 4), ("x",), {"x": 4})
    ((('x',), (), ()), ((), ('x',), ()))
    """
    long = [a for a, n in enumerate(lengths) if n > 1] or [0]
    if not lengths:
        return ()
    blocks = _block_count(names, sizes)
    first = long[0]
    even = (a for a in long if lengths[a] % blocks == 0)
    return _one_sharded(names, first if lengths[first] >= blocks else next(even, first), len(lengths))


def _one_sharded(spec: Names, axis: int, ndim: int) -> Specs:
    return tuple(spec if a == axis else () for a in range(ndim))


def _names_of(specs: Specs) -> Names:
    return tuple(name for spec in specs for name in spec)


def _block_count(names: Names, sizes: dict[str, int]) -> int:
    return prod(sizes[name] for name in names)


def _is_consecutive(cut: AnyCut) -> bool:
    """Return whether each device holds one run of elements, and these are in the order of the devices."""
    return cut.is_consecutive or cut.length <= cut.block


def _cyclic_evenly(cut: AnyCut) -> int | None:
    """Return after how many elements blocks repeat, if an axis has a whole number of such periods; else None."""
    if cut.is_consecutive:
        return cut.length if cut == Cut(cut.length, cut.blocks) and cut.length % cut.blocks == 0 else None
    return cut.period if cut.length % cut.period == 0 else None


def _consecutive_spec(names: Names, boundaries: Sequence[int]) -> Names:
    """Return the spec of an axis that is cut at these boundaries: the plain names, if they cut it so by default."""
    return Cuts(names, boundaries).canonical(len(boundaries) - 1)
