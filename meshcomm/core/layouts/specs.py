"""Sharding specs beyond names: an axis cut at chosen boundaries, or cyclically.

A spec is a tuple of mesh dimensions. `Cuts` and `Cyclic` are tuples of mesh dimensions that also say how these cut the
axis. So code that copies specs, from an operand to a result, copies how axes are cut.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NoReturn, TypeVar

from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core._mistakes import suggestion
from meshcomm.core._types import Names
from meshcomm.core.layouts.cyclic import LONGEST, AnyCut, cyclic_cut
from meshcomm.core.layouts.partition import ChosenCut, Cut
from meshcomm.errors import LayoutError, ShapeError

S = TypeVar("S", bound="CutSpec")


class CutSpec(tuple[str, ...]):
    """The mesh dimensions that shard an axis, and how they cut it; a frozen value."""

    rule: tuple[int, ...]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is a frozen value: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is a frozen value: {name} cannot be deleted")

    @classmethod
    def made(cls: type[S], names: Names, rule: tuple[int, ...]) -> S:
        """Return the spec of *names* with *rule*, without any check.

        >>> Cyclic.made(("x",), (2, 0))
        Cyclic('x', 2)
        """
        spec = tuple.__new__(cls, names)
        spec.__dict__["rule"] = rule
        return spec

    def over(self: S, names: Names) -> S:
        """Return the spec with the same rule over the mesh dimensions *names*.

        >>> Cyclic("x", 2).over(("y", "z"))
        Cyclic(('y', 'z'), 2)
        """
        return self.made(names, self.rule)

    def cut(self, length: int, blocks: int) -> AnyCut:
        """Return the cut of an axis of *length* elements into *blocks*; ``ShapeError`` if it is for another length.

        >>> Cuts("x", (0, 1, 4)).cut(4, 2).longest, Cyclic("x", 2).cut(7, 2).longest
        (3, 4)
        """
        raise NotImplementedError

    def canonical(self, blocks: int) -> Names:
        """Return this spec for a mesh that cuts the axis into *blocks*; only the names if it is the default cut.

        ``LayoutError`` if it is for another number of blocks.

        >>> Cuts("x", (0, 1, 4)).canonical(2), Cuts("x", (0, 2, 4)).canonical(2), Cyclic("x", 2).canonical(1)
        (Cuts('x', (0, 1, 4)), ('x',), ('x',))
        """
        raise NotImplementedError

    @property
    def rule_text(self) -> str:
        """The rule in the text of a layout, without the mesh dimensions.

        >>> Cuts("x", (0, 1, 4)).rule_text, Cyclic("x", 2).rule_text
        ('cuts(0;1;4)', 'cyclic(2)')
        """
        return f"{type(self).__name__.lower()}({';'.join(map(str, self.rule))})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and tuple.__eq__(self, other) and self.rule == other.rule

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((type(self).__name__, tuple(self), self.rule))

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self).__name__, tuple(self), self.rule)

    def __copy__(self: S) -> S:
        return self

    def __deepcopy__(self: S, memo: object) -> S:
        return self


class Cuts(CutSpec):
    """A sharding spec: the axis is cut at chosen boundaries.

    Block b has the elements from ``boundaries[b]`` to ``boundaries[b + 1]``; it may be empty. There is one block for
    each device along the mesh dimensions, and one boundary more than blocks. ``LayoutError`` if the boundaries do not
    begin with 0, or decrease. The last boundary is compared with the length of the axis when a layout is used for a
    shape, unless ``numpy.array_split`` cuts at the same boundaries: then the layout is the default, for any length.

    Parameters
    ----------
    dims: the name of a mesh dimension, or a tuple of names, the first one slowest
    boundaries: starts of the blocks, and the end of the last one
    sizes: lengths of the blocks, instead of *boundaries*

    >>> import meshcomm as mc
    >>> mesh = mc.Mesh(range(3), {"x": 3})
    >>> layout = mc.Layout([mc.Cuts("x", (0, 10, 25, 40))], mesh)
    >>> layout.block_slices((40,), 1), mc.Cuts("x", sizes=(10, 15, 15)) == layout.sharding_specs[0]
    ((slice(10, 25, None),), True)
    """

    __module__ = "meshcomm"

    def __new__(
        cls, dims: str | Sequence[str], boundaries: Iterable[int] | None = None, *, sizes: Iterable[int] | None = None
    ) -> "Cuts":
        """Check the arguments."""
        names = _checked_names("Cuts", dims)
        if (boundaries is None) == (sizes is None):
            raise LayoutError("Cuts takes either boundaries or sizes")
        if sizes is not None:
            lengths = _checked_integers("sizes", sizes)
            if any(length < 0 for length in lengths):
                raise LayoutError(f"Cuts: sizes {quote(lengths)} have a negative length; lengths are zero or more")
            rule = (0, *accumulate(lengths))
        else:
            assert boundaries is not None
            rule = _checked_integers("boundaries", boundaries)
        if len(rule) < 2 or rule[0] != 0:
            raise LayoutError(
                f"Cuts: boundaries {quote(rule)} must begin with 0 and have one entry more than blocks; "
                "lengths go to sizes="
            )
        for block, (start, stop) in enumerate(pairwise(rule)):
            if stop < start:
                interval_text = f"{quote(start)} to {quote(stop)}"
                raise LayoutError(f"Cuts: block {block} would go from {interval_text}; boundaries must not decrease")
        if rule[-1] >= LONGEST:
            raise LayoutError(f"Cuts: an axis of {quote(rule[-1])} elements is too long")
        return cls.made(names, rule)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The starts of the blocks, and the end of the last one.

        >>> Cuts("x", sizes=(10, 15, 15)).boundaries
        (0, 10, 25, 40)
        """
        return self.rule

    @property
    def sizes(self) -> tuple[int, ...]:
        """The lengths of the blocks.

        >>> Cuts("x", (0, 10, 25, 40)).sizes
        (10, 15, 15)
        """
        return tuple(stop - start for start, stop in pairwise(self.rule))

    def cut(self, length: int, blocks: int) -> AnyCut:
        if length != self.rule[-1]:
            raise ShapeError(
                f"{quote(self)} cuts an axis of {counted(self.rule[-1], 'element')}, but this axis has "
                f"{quote(length)}; the last "
                "boundary must be the length"
            )
        return ChosenCut(self.rule)

    def canonical(self, blocks: int) -> Names:
        if len(self.rule) != blocks + 1:
            raise LayoutError(
                f"{quote(self)} has {len(self.rule) - 1} blocks, but the mesh has {counted(blocks, 'device')} along "
                f"{'+'.join(self)}; there must be one block for each"
            )
        return tuple(self) if ChosenCut(self.rule).is_usual() else self

    def __repr__(self) -> str:
        return self.shown(", ".join(map(repr, self.rule)))

    def shown(self, boundaries: str) -> str:
        """Return this spec as Python source, with *boundaries* as the text of its boundaries.

        >>> Cuts("x", (0, 10, 25, 40)).shown("0, ..., 40")
        "Cuts('x', (0, ..., 40))"
        """
        return f"Cuts({_names_text(self)}, ({boundaries}))"


class Cyclic(CutSpec):
    """A sharding spec: blocks of *block* elements that go to the devices in turn, as in ScaLAPACK.

    Block j goes to device ``(j + offset) % devices`` along the mesh dimensions; the last block may be shorter. A
    device holds all its blocks side by side, in order, in one C-contiguous array: ScaLAPACK's local array. HPF calls
    this CYCLIC(block). ``LayoutError`` if *block* is below 1, or *offset* no device.

    Parameters
    ----------
    dims: the name of a mesh dimension, or a tuple of names, the first one slowest
    block: number of elements of a block, 1 or more; it may exceed the length of the axis
    offset: the device along *dims* that gets the first block

    >>> import meshcomm as mc
    >>> layout = mc.Layout([mc.Cyclic("x", 2)], mc.Mesh(range(2), {"x": 2}))
    >>> [layout.global_indices((7,), device, 0).tolist() for device in range(2)]
    [[0, 1, 4, 5], [2, 3, 6]]
    """

    __module__ = "meshcomm"

    def __new__(cls, dims: str | Sequence[str], block: int, offset: int = 0) -> "Cyclic":
        """Check the arguments."""
        names = _checked_names("Cyclic", dims)
        block, offset = as_integer(block, "block", LayoutError), as_integer(offset, "offset", LayoutError)
        if not 1 <= block < LONGEST:
            raise LayoutError(f"Cyclic: block {quote(block)}; a block has 1 element or more, and fewer than 2**62")
        if not 0 <= offset < LONGEST:
            raise LayoutError(f"Cyclic: offset {quote(offset)}; 0 <= offset < devices")
        return cls.made(names, (block, offset))

    @property
    def block(self) -> int:
        """The number of elements of a block."""
        return self.rule[0]

    @property
    def offset(self) -> int:
        """The device along the mesh dimensions that gets the first block.

        >>> import meshcomm as mc
        >>> layout = mc.Layout([mc.Cyclic("x", 2, offset=1)], mc.Mesh(range(2), {"x": 2}))
        >>> layout.sharding_specs[0].offset, layout.global_indices((7,), 1, 0).tolist()
        (1, [0, 1, 4, 5])
        """
        return self.rule[1]

    def cut(self, length: int, blocks: int) -> AnyCut:
        return cyclic_cut(length, blocks, self.block, self.offset)

    def canonical(self, blocks: int) -> Names:
        if self.offset >= blocks:
            raise LayoutError(
                f"{quote(self)}: offset {self.offset} of {counted(blocks, 'device')}; 0 <= offset < devices"
            )
        return tuple(self) if blocks == 1 else self

    @property
    def rule_text(self) -> str:
        return f"cyclic({self.block};{self.offset})" if self.offset else f"cyclic({self.block})"

    def __repr__(self) -> str:
        return f"Cyclic({_names_text(self)}, {self.block}{f', offset={self.offset}' if self.offset else ''})"


def cut_at(names: Names, boundaries: Sequence[int], length: int) -> Names:
    """Return the spec of mesh dimensions *names* with valid *boundaries*; only the names if it is the default cut.

    >>> cut_at(("x",), (0, 2, 3), 3), cut_at(("x",), (0, 1, 3), 3)
    (('x',), Cuts('x', (0, 1, 3)))
    """
    cut = Cut(length, len(boundaries) - 1)
    if boundaries[1] == cut.start(1) and cut.all_starts() == list(boundaries):
        return tuple(names)
    return Cuts.made(tuple(names), tuple(boundaries))


def cut_of(names: Names, length: int, blocks: int) -> AnyCut:
    """Return the cut of an axis of *length* elements into *blocks* over the mesh dimensions *names*."""
    return names.cut(length, blocks) if isinstance(names, CutSpec) else Cut(length, blocks)


def spec_of(names: Names, cut: AnyCut) -> Names:
    """Return the spec by which mesh dimensions *names* cut an axis into *cut*.

    >>> spec_of(("x",), Cut(3, 2)), spec_of(("x",), Cyclic(("x",), 2).cut(8, 2))
    (Cuts('x', (0, 2, 3)), Cyclic('x', 2))
    """
    return Cuts(names, cut.all_starts()) if cut.is_consecutive else Cyclic(names, cut.block, cut.offset)


def is_interval(old_spec: Names, new_spec: Names) -> bool:
    """Return whether a block of an axis with *new_spec* is one interval of a block with *old_spec*."""
    return old_spec == new_spec or not (isinstance(old_spec, Cyclic) or isinstance(new_spec, Cyclic))


def fixed_length(spec: Names) -> int | None:
    """Return the required length of an axis with *spec*, which chosen boundaries determine; None for any length.

    >>> fixed_length(Cuts("x", (0, 3, 4))), fixed_length(("x",))
    (4, None)
    """
    return spec.boundaries[-1] if isinstance(spec, Cuts) else None


def renamed(spec: Names, names: Names) -> Names:
    """Return *spec* over the mesh dimensions *names*, with its rule if it has one."""
    return spec.over(names) if isinstance(spec, CutSpec) else names


def free_names(spec: Names, used_names: Iterable[str]) -> Names:
    """Return *spec* without the mesh dimensions in *used_names*: itself if it has none of them, else the default cut.

    >>> free_names(Cyclic(("x", "y"), 4), {"z"}), free_names(Cyclic(("x", "y"), 4), {"x"})
    (Cyclic(('x', 'y'), 4), ('y',))
    """
    names = tuple(name for name in spec if name not in used_names)
    return spec if len(names) == len(spec) else names


def specs_of_blocks(
    axes: Sequence[Names], numbers: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]]
) -> list[Names]:
    """Return the specs of a layout with blocks of these shapes on the devices; ``LayoutError`` if there is none.

    Parameters
    ----------
    axes: mesh dimensions that shard each axis
    numbers: block numbers of each device, one per axis
    shapes: shape of the block of each device

    >>> specs_of_blocks([("x",)], [(0,), (1,)], [(3,), (1,)])
    [Cuts('x', (0, 3, 4))]
    """
    try:
        checked_shapes = [_checked_integers("block shape", shape) for shape in shapes]
    except TypeError:
        raise LayoutError(f"shapes {quote(shapes)}; it must be a list with the shape of each block") from None
    if any(length < 0 for shape in checked_shapes for length in shape):
        raise LayoutError(f"shapes {quote(shapes)} have a negative length; lengths are zero or more")
    if len(checked_shapes) != len(numbers):
        raise LayoutError(
            f"{len(checked_shapes)} shapes of blocks for a mesh of {counted(len(numbers), 'device')}; one for each"
        )
    specs: list[Names] = []
    for axis, names in enumerate(axes):
        blocks: dict[int, tuple[int, int]] = {}  # per block: its length, and a device that has it
        for device, (block_numbers, shape) in enumerate(zip(numbers, checked_shapes, strict=True)):
            if len(shape) != len(axes):
                raise LayoutError(
                    f"device {device} has a block of shape {shape}, with {counted(len(shape), 'axis')}; "
                    "the specs are for "
                    f"{len(axes)}"
                )
            length, other = blocks.setdefault(block_numbers[axis], (shape[axis], device))
            if length != shape[axis]:
                raise LayoutError(
                    f"along axis {axis}, devices {other} and {device} hold the same elements, but their blocks have "
                    f"{length} and {shape[axis]}"
                )
        sizes = [blocks[number][0] for number in sorted(blocks)]
        specs.append(Cuts(names, sizes=sizes) if names else ())
    return specs


_RULES: dict[str, type[CutSpec]] = {"cuts": Cuts, "cyclic": Cyclic}


def parsed_rule(names: Names, text: str) -> CutSpec:
    """Return the spec of *names* with the rule in *text*: the inverse of `CutSpec.rule_text`.

    >>> parsed_rule(("x",), "cyclic(64)"), parsed_rule(("x", "y"), "cuts(0;3;3;7;9)")
    (Cyclic('x', 64), Cuts(('x', 'y'), (0, 3, 3, 7, 9)))
    """
    kind, opening, arguments = text.partition("(")
    numbers, closing, tail = arguments.partition(")")
    fields = numbers.split(";")
    if not opening or not closing or tail or kind not in _RULES or not all(_is_number(number) for number in fields):
        hint = "" if kind in _RULES else suggestion(kind, _RULES)
        raise LayoutError(
            f"{quote(text)} is no rule of a spec; it is cuts(0;...;LENGTH) or cyclic(BLOCK;OFFSET){hint}"
        )
    values = [int(number) for number in fields]
    if kind == "cuts":
        return Cuts(names, values)
    if len(values) > 2:
        raise LayoutError(
            f"{quote(text)} has {counted(len(values), 'number')}; it is cyclic(BLOCK) or cyclic(BLOCK;OFFSET)"
        )
    return Cyclic(names, *values)


def _is_number(text: str) -> bool:
    return 0 < len(text) < 20 and text.isascii() and text.isdigit()


def _unpickled(kind: str, names: Names, rule: tuple[int, ...]) -> CutSpec:
    return Cuts(names, rule) if kind == "Cuts" else Cyclic(names, *rule)


def _names_text(names: Names) -> str:
    return repr(names[0] if len(names) == 1 else tuple(names))


def _checked_names(subject: str, dims: object) -> Names:
    names = (dims,) if isinstance(dims, str) else dims
    if isinstance(names, CutSpec) or not isinstance(names, list | tuple) or not names:
        raise LayoutError(f"{subject}: dims {quote(dims)}; it is a mesh dimension, or a tuple of mesh dimensions")
    if not all(isinstance(name, str) for name in names):
        raise LayoutError(f"{subject}: dims {quote(dims)}; the name of a mesh dimension is a str")
    return tuple(map(str.__str__, names))


def _checked_integers(subject: str, values: Iterable[int]) -> tuple[int, ...]:
    try:
        items = list(values)
    except TypeError:
        type_name = type(values).__name__
        raise LayoutError(f"Cuts: {subject} {quote(values)} is a {type_name}; it must be a sequence") from None
    return tuple(as_integer(value, subject, LayoutError) for value in items)
