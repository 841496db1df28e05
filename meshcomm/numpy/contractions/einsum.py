"""Einstein sums: parsed subscripts, the order in which operands are contracted, and the plan of a whole sum."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.core._arguments import as_dtype, as_integer, counted, quote, scratch_limit
from meshcomm.core._tracing import Value
from meshcomm.core._types import AnyFunction, Casting, DType, FieldsOnly, Shape
from meshcomm.core._units import bytes_text, outline, seconds_text
from meshcomm.core.layouts.axes import refuse_match
from meshcomm.core.layouts.coordinates import used_dims
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.mistakes import no_layout
from meshcomm.core.layouts.refinement import same_grid
from meshcomm.core.layouts.specs import free_names
from meshcomm.errors import LayoutError, MeshError, ShapeError
from meshcomm.numpy.contractions.contraction import Contraction, Factor, index_lengths, spread_over
from meshcomm.numpy.contractions.grids import Problem, ScratchTooSmallError, cheapest_contraction
from meshcomm.numpy.indexing.diagonals import local_diagonal

Path: TypeAlias = tuple[tuple[int, ...], ...]
"""For each contraction, the positions of its operands in the list of operands; the result becomes the last one."""

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BROADCAST = 0x2460  # the first of the characters that stand for the axes of an ellipsis
_STRETCHED = 0xE000  # the first of those for axes of length 1 that are stretched


class EinsumOperand(NamedTuple):
    """Shape, dtype and layout of an operand: all that a plan needs of a tensor."""

    shape: Shape
    dtype: DType
    layout: Layout


class Expression(NamedTuple):
    """An Einstein sum: the indices of each operand, and those of the result; each a character, without ellipses.

    An axis of length 1 that is stretched has a separate index.
    """

    operands: tuple[str, ...]
    result: str


# -- subscripts -------------------------------------------------------------------------------------------------------


def from_lists(arguments: Sequence[object]) -> tuple[str, list[object]]:
    """Return subscripts and operands from alternating arguments: ``einsum(a, [0, 1], b, [1, 2], [0, 2])``."""
    count = len(arguments) // 2
    operands, lists = list(arguments[: 2 * count : 2]), list(arguments[1 : 2 * count : 2])
    text = ",".join(map(_list_letters, lists))
    return (f"{text}->{_list_letters(arguments[-1])}" if len(arguments) % 2 else text), operands


def _list_letters(subscripts: Value) -> str:
    try:
        entries = list(subscripts)
    except TypeError:
        raise ShapeError(f"einsum: subscripts {quote(subscripts)} must be a string, or a list of integers") from None
    text = ""
    for subscript in entries:
        if subscript is Ellipsis:
            text += "..."
            continue
        number = as_integer(subscript, "a subscript", TypeError)
        if not 0 <= number < len(LETTERS):
            raise ShapeError(f"einsum: subscript {quote(number)}; 0 <= subscript < {len(LETTERS)}")
        # NumPy sorts them as numbers, and letters with capitals first.
        text += sorted(LETTERS)[number]
    return text


@lru_cache(maxsize=1024)
def parse_subscripts(subscripts: str, shapes: tuple[Shape, ...]) -> Expression:
    """Return the expression of *subscripts* for operands of these *shapes*; ``ShapeError`` if they do not fit.

    Source: the rules of `numpy.einsum`.

    >>> parse_subscripts("ij,jk", ((2, 3), (3, 4))), parse_subscripts("ba", ((2, 3),))
    (Expression(operands=('ij', 'jk'), result='ik'), Expression(operands=('ba',), result='ab'))
    """
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ShapeError(
            f"einsum: {subscripts!r} is for {counted(len(terms), 'operand')}, but there are {len(shapes)}"
        )
    ellipsis_ndim = 0
    for number, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        letters = _checked_letters(f"operand {number}", term)
        missing = len(shape) - len(letters)
        if missing < 0 or (missing > 0 and "..." not in term):
            error = "too many subscripts" if missing < 0 else "too few subscripts, and no ellipsis"
            raise ShapeError(
                f"einsum: {term!r} has {error} for operand {number}, which has {counted(len(shape), 'axis')}: {shape}"
            )
        if "..." in term:
            ellipsis_ndim = max(ellipsis_ndim, missing)
    ellipsis_indices = "".join(map(chr, range(_BROADCAST, _BROADCAST + ellipsis_ndim)))
    full_terms = tuple(
        term.replace("...", ellipsis_indices[ellipsis_ndim - len(shape) + len(term.replace("...", "")) :])
        for term, shape in zip(terms, shapes, strict=True)
    )
    if arrow:
        letters = _checked_letters("the result", right)
        if ellipsis_ndim and "..." not in right:
            raise ShapeError(f"einsum: {subscripts!r} has an ellipsis that stands for axes, but none in the result")
        result = right.replace("...", ellipsis_indices)
        repeated = [index for index, count in Counter(letters).items() if count > 1]
        unknown = sorted(set(letters) - set("".join(full_terms)))
        if repeated or unknown:
            result_error = f"repeats {repeated[0]!r}" if repeated else f"has {unknown[0]!r}, which no operand has"
            raise ShapeError(f"einsum: the result {right!r} {result_error}")
    else:
        counts = Counter("".join(full_terms))
        result = ellipsis_indices + "".join(
            sorted(index for index, count in counts.items() if count == 1 and index not in ellipsis_indices)
        )
    return Expression(_with_stretched_indices(full_terms, shapes), result)


def _checked_letters(subject: str, term: str) -> str:
    """Return the letters of a term; ``ShapeError`` if it has anything but letters and one ellipsis."""
    letters = term.replace("...", "", 1)
    bad_sign = next((letter for letter in letters if letter not in LETTERS), None)
    if bad_sign is not None:
        reason = "an ellipsis (...) has three dots, and is there once" if bad_sign == "." else "subscripts are letters"
        raise ShapeError(f"einsum: {bad_sign!r} in the subscripts {term!r} of {subject}: {reason}")
    return letters


def _with_stretched_indices(terms: tuple[str, ...], shapes: tuple[Shape, ...]) -> tuple[str, ...]:
    """Return the terms with a separate index for each axis of length 1 that is stretched."""
    lengths: dict[str, tuple[int, int]] = {}  # of an index, and the operand that it is from
    for number, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        own_lengths: dict[str, int] = {}
        for index, n in zip(term, shape, strict=True):
            if own_lengths.setdefault(index, n) != n:
                raise ShapeError(
                    f"einsum: operand {number} has {own_lengths[index]} and {n} elements along "
                    f"index {_index_text(index)}"
                )
            length, first_operand = lengths.get(index, (1, number))
            if length != n and 1 not in (length, n):
                raise ShapeError(
                    f"einsum: index {_index_text(index)} has {counted(length, 'element')} in operand {first_operand}, "
                    f"but {n} in operand {number}"
                )
            if index not in lengths or length == 1:
                lengths[index] = n, number
    new_indices = iter(range(_STRETCHED, _STRETCHED + sum(map(len, terms))))
    renamed_terms = []
    for term, shape in zip(terms, shapes, strict=True):
        renamed = {i: chr(next(new_indices)) for i, n in zip(term, shape, strict=True) if n == 1 != lengths[i][0]}
        renamed_terms.append("".join(renamed.get(i, i) for i in term))
    return tuple(renamed_terms)


def _index_text(index: str) -> str:
    return "... (an axis of the ellipsis)" if ord(index) >= _BROADCAST else repr(index)


# -- order ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def contraction_path(operands: tuple[Factor, ...], result: str) -> Path:
    """Return the order in which pairs of operands are contracted, by opt_einsum if it is installed, else by NumPy."""
    terms = [operand.indices for operand in operands]
    if len(terms) < 3:
        return (tuple(range(len(terms))),)
    letters = dict(zip(dict.fromkeys("".join(terms)), LETTERS, strict=False))
    if len(letters) < len(set("".join(terms))):
        return ((0, 1),) * (len(terms) - 1)
    texts = ["".join(letters[i] for i in term) for term in terms]
    text = f"{','.join(texts)}->{''.join(letters[i] for i in result)}"
    arrays = [np.broadcast_to(np.zeros(()), operand.shape) for operand in operands]
    find_path: AnyFunction = np.einsum_path
    if find_spec("opt_einsum") is not None:
        find_path = import_module("opt_einsum").contract_path
    path: list[tuple[int, ...]] = []
    operand_count = len(terms)
    for positions in find_path(text, *arrays, optimize="greedy")[0]:
        if isinstance(positions, tuple):  # NumPy's begins with a word
            path += _as_pairs(positions, operand_count)
            operand_count -= len(positions) - 1
    return tuple(path)


def _as_pairs(positions: tuple[int, ...], count: int) -> Path:
    """Return the contraction of several of *count* operands, at these *positions*, as one of pairs.

    >>> _as_pairs((0, 2), 3), _as_pairs((0, 1, 3), 4)
    (((0, 2),), ((0, 1), (1, 2)))
    """
    first, *others = positions
    if not others:
        return ((first,),)
    pairs, contracted = [(first, others[0])], [first, others[0]]
    for other in others[1:]:
        pairs.append((other - sum(1 for number in contracted if number < other), count - len(pairs) - 1))
        contracted.append(other)
    return tuple(pairs)


# -- layouts ----------------------------------------------------------------------------------------------------------


def default_layout(result: str, operands: Sequence[Factor], mesh: Mesh) -> Layout:
    """Return the layout of a result for which the caller gives none.

    Each axis is cut as in the first operand that cuts it, with the mesh dimensions that are unused yet. Those that cut
    operands, but nothing of the result, then cut its longest axis that is not cut, or the one with the longest blocks.

    >>> mesh = Mesh(range(2), {"x": 2})
    >>> a, b = Layout(["unsharded", "x"], mesh), Layout(["x", "unsharded"], mesh)
    >>> matrices = [Factor(i, (4, 4), layout, np.dtype("f8")) for i, layout in (("ij", a), ("jk", b))]
    >>> default_layout("ik", matrices, mesh).sharding_specs
    ['x', 'unsharded']
    """
    taken_names: set[str] = set()
    axes = []
    for index in result:
        names: tuple[str, ...] = ()
        for operand in operands:
            if index in operand.indices and not names:
                names = free_names(operand.layout.axes[operand.indices.index(index)], taken_names)
        axes.append(names)
        taken_names.update(names)
    operand_names = {name for operand in operands for name in used_dims(operand.layout)}
    free_operand_names = tuple(
        name for name, size in mesh.dims if name in operand_names and name not in taken_names and size > 1
    )
    lengths = index_lengths(tuple(operands))
    shape = tuple(lengths[index] for index in result)
    return Layout(spread_over(tuple(axes), shape, free_operand_names, mesh) if free_operand_names else axes, mesh)


def _without_repeats(factor: Factor) -> Factor:
    """Return the diagonal of a factor with repeated indices: as `numpy.diagonal` of tensors has it, axis by axis."""
    while True:
        axes = repeated_axes(factor.indices)
        if axes is None:
            return factor
        indices, shape, layout = factor.indices, factor.shape, factor.layout
        diagonal = local_diagonal(layout, shape, axes, 0, None)
        if diagonal is None:
            layout = Layout(layout.as_consecutive(axes), layout.mesh)
            diagonal = local_diagonal(layout, shape, axes, 0, None)
            assert diagonal is not None
        other_axes = [axis for axis in range(len(shape)) if axis not in axes]
        factor = Factor(
            "".join(indices[axis] for axis in other_axes) + indices[axes[0]],
            (*(shape[axis] for axis in other_axes), diagonal.length),
            Layout((*(layout.axes[axis] for axis in other_axes), diagonal.spec), layout.mesh),
            factor.dtype,
        )


def repeated_axes(indices: str) -> tuple[int, int] | None:
    """Return two axes with the same index; None if there are none.

    >>> repeated_axes("ijj"), repeated_axes("ij")
    ((1, 2), None)
    """
    for axis, index in enumerate(indices):
        other_axis = indices.find(index, axis + 1)
        if other_axis >= 0:
            return axis, other_axis
    return None


# -- plans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class EinsumPlan(FieldsOnly):
    """How an Einstein sum runs: print it to see the order of its contractions, and what moves in each.

    `bytes_moved` and `messages` are the most that a device receives. `peak_bytes` is the most that it holds at once:
    the blocks of the operands, of the result and of intermediate results, and scratch.
    """

    __module__ = "meshcomm"

    expression: Expression
    operands: tuple[Factor, ...]
    path: Path
    problems: tuple[Problem, ...]
    limit: int | None
    machine: Machine

    @cached_property
    def contractions(self) -> tuple[Contraction, ...]:
        """The contractions of one or two operands, in their order."""
        plans, minimum = list[Contraction](), 0
        for problem in self.problems:
            try:
                plans.append(cheapest_contraction(problem, self.limit, self.machine))
            except ScratchTooSmallError as error:
                minimum = max(minimum, error.minimum)
        if minimum:
            raise ShapeError(
                f"max_scratch_bytes={self.limit} is too little for the einsum {self.subscripts!r}: the minimum is "
                f"{minimum} bytes"
            )
        return tuple(plans)

    @property
    def subscripts(self) -> str:
        """The expression, with a character for each index; ellipses have characters of their own."""
        return f"{','.join(self.expression.operands)}->{self.expression.result}"

    @property
    def layout(self) -> Layout:
        """The layout of the result."""
        return self.problems[-1].result.layout

    @property
    def shape(self) -> Shape:
        """The shape of the result."""
        return self.problems[-1].result.shape

    @property
    def dtype(self) -> DType:
        """The dtype of the result."""
        return self.problems[-1].result.dtype

    @property
    def bytes_moved(self) -> int:
        """The most bytes that a device receives from others, added over the contractions."""
        return sum(plan.bytes_moved for plan in self.contractions)

    @property
    def messages(self) -> int:
        """The most messages that a device receives: peers with data for it, added over all relayouts."""
        return sum(plan.messages for plan in self.contractions)

    @property
    def flops(self) -> int:
        """The most multiplications and additions of a device."""
        return sum(plan.flops for plan in self.contractions)

    @property
    def seconds(self) -> float:
        """The time by the cost model: of the arithmetic, and of all that moves."""
        return sum(plan.seconds for plan in self.contractions)

    @cached_property
    def peak_bytes(self) -> int:
        """The most bytes that a device holds at once."""
        operand_bytes, peak = sum(map(_block_bytes, self.operands)), 0
        intermediate_bytes = [0] * len(self.operands)  # of intermediate results; 0 for each operand
        for positions, plan in zip(self.path, self.contractions, strict=True):
            result_bytes = _block_bytes(plan.result)
            peak = max(peak, operand_bytes + sum(intermediate_bytes) + result_bytes + plan.scratch_bytes)
            intermediate_bytes = [
                size for number, size in enumerate(intermediate_bytes) if number not in positions
            ] + [result_bytes]
        return peak

    @property
    def scratch_bytes(self) -> int:
        """The most bytes that a device uses beyond its blocks in one of the contractions: the scratch."""
        return max(plan.scratch_bytes for plan in self.contractions)

    def __repr__(self) -> str:
        texts = (f"{factor.shape} {factor.layout.specs_text}" for factor in self.operands)
        title = f"einsum of {self.subscripts!r}: {', '.join(texts)} -> {self.layout.specs_text}"
        totals = (
            f"each device receives at most {bytes_text(self.bytes_moved)} in {counted(self.messages, 'message')}, "
            f"holds at most {bytes_text(self.peak_bytes)}, "
            f"{bytes_text(self.scratch_bytes)} of it scratch, and multiplies for {self.flops:.3g} flops: "
            f"{seconds_text(self.seconds)} by the cost model"
        )
        return outline(title, self.contractions, [totals])


def _block_bytes(factor: Factor) -> int:
    return factor.layout.largest_block(factor.shape) * factor.dtype.itemsize


_DEFAULT_MACHINE = Machine()


def plan_of(
    subscripts: str,
    operands: tuple[EinsumOperand, ...],
    *,
    layout: Layout | None,
    dtype: DTypeLike | None,
    casting: Casting = "same_kind",
    limit: int | None,
    machine: Machine | None = None,
) -> EinsumPlan:
    """Return the plan of an Einstein sum; ``ShapeError``, ``LayoutError`` or ``TypeError`` if there is none.

    Parameters
    ----------
    subscripts: text, as `numpy.einsum` takes it
    operands: shapes, dtypes and layouts on one mesh
    layout: layout of the result; by default that of `default_layout`
    dtype: dtype of the result; by default NumPy's for these operands
    casting: NumPy's casting rule for the conversion to *dtype*
    limit: scratch limit in bytes
    machine: constants of the cost model; by default the usual ones
    """
    if layout is not None and not isinstance(layout, Layout):
        raise no_layout("einsum: layout= takes a Layout", layout)
    requested_dtype = None if dtype is None else np.dtype(dtype)
    return _einsum_plan(
        subscripts, operands, layout, requested_dtype, casting, scratch_limit(limit), machine or _DEFAULT_MACHINE
    )


@lru_cache(maxsize=1024)
def _einsum_plan(  # noqa: PLR0917 - the key of a cache
    subscripts: str,
    operands: tuple[EinsumOperand, ...],
    layout: Layout | None,
    dtype: DType | None,
    casting: Casting,
    limit: int | None,
    machine: Machine,
) -> EinsumPlan:
    expression, mesh = parse_subscripts(subscripts, tuple(x.shape for x in operands)), operands[0].layout.mesh
    result_dtype = _result_dtype([operand.dtype for operand in operands], dtype, casting)
    pending = [
        _without_repeats(Factor(indices, operand.shape, operand.layout, operand.dtype))
        for indices, operand in zip(expression.operands, operands, strict=True)
    ]
    if layout is not None:
        lengths = index_lengths(tuple(pending))
        layout = _checked_layout(layout, tuple(lengths[index] for index in expression.result), mesh)
    factors, path, problems = tuple(pending), list[tuple[int, ...]](), list[Problem]()

    def contract(positions: tuple[int, ...], *, last: bool) -> None:
        inputs = tuple(pending[number] for number in positions)
        for number in sorted(positions, reverse=True):
            del pending[number]
        needed_indices = {*expression.result, *(index for factor in pending for index in factor.indices)}
        lengths = index_lengths(inputs)
        indices = expression.result if last else "".join(i for i in lengths if i in needed_indices)
        target = layout if last and layout is not None else default_layout(indices, factors if last else inputs, mesh)
        result = Factor(indices, tuple(lengths[i] for i in indices), target, result_dtype)
        problems.append(Problem(inputs, result))
        pending.append(result)
        path.append(positions)

    if len(pending) > 1:  # an index that one operand alone has is summed over first
        counts = Counter("".join(factor.indices for factor in pending) + expression.result)
        for factor in factors:
            if any(counts[index] == 1 for index in factor.indices):
                contract((next(number for number, other in enumerate(pending) if other is factor),), last=False)
    pair_path = contraction_path(tuple(pending), expression.result)
    for number, positions in enumerate(pair_path, 1):
        contract(positions, last=number == len(pair_path))
    return EinsumPlan(expression, factors, tuple(path), tuple(problems), limit, machine)


def _result_dtype(dtypes: Sequence[DType], dtype: DType | None, casting: Casting) -> DType:
    """Return the dtype of a sum of products: *dtype*, if operands can be converted to it; ``TypeError`` as NumPy's."""
    sum_dtype = np.result_type(*dtypes) if dtype is None else dtype
    for operand_dtype in dtypes:
        if not np.can_cast(operand_dtype, sum_dtype, casting):
            raise TypeError(f"einsum: an operand of {operand_dtype} cannot become {sum_dtype} by the rule {casting!r}")
    if sum_dtype.kind not in "biufc":
        raise TypeError(f"einsum multiplies numbers, not {sum_dtype}")
    return as_dtype(sum_dtype.newbyteorder("="))


def _checked_layout(layout: Layout, shape: Shape, mesh: Mesh) -> Layout:
    """Return *layout* on *mesh*; ``LayoutError`` or ``MeshError`` if a result of *shape* cannot have it."""
    if layout.ndim != len(shape):
        raise LayoutError(
            f"einsum: layout= is for {counted(layout.ndim, 'axis')}, but the result has {len(shape)}: {shape}"
        )
    refuse_match(layout)
    if layout.mesh is not mesh and not same_grid(layout.mesh, mesh):
        raise MeshError(f"einsum: layout= is on the {layout.mesh}, but the operands are on the {mesh}")
    layout.check_fits(shape)
    return layout if layout.mesh is mesh else Layout(layout.axes, mesh)
