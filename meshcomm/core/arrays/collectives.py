"""Collective operations on plain arrays, over the groups of a group assignment.

Each one moves boxes between the ranks of a group, as a relayout does: see :mod:`meshcomm.core.transport`.

``group_assignment`` is an integer array of shape (groups, ranks per group). Each row is a group; the index of a rank
in its row is its position in the group. Each rank of the communicator appears in exactly one row. None is one group of
all ranks.

How an operation describes its boxes: as boxes of one array of all ranks of the group. This array has the axes of a
block, an axis for the sender before one of them, and for some operations an axis for the receiver. A rank passes the
box at its index along the sender's axis, and gets the box at its index along the receiver's axis, or the whole array.
The boxes are laid out in memory in the order of these axes, so the sender's axis before the concatenated axis is the
concatenation, and the receiver's axis before the split axis is the split. `_box_of` makes these boxes.
"""

from collections.abc import Callable, Hashable
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.core._arguments import as_array, check_axis, check_integer, counted, plain_value, quote, quote_briefly
from meshcomm.core._tracing import Value, traceable
from meshcomm.core._types import Array, Groups, Pairs, Ranks, Shape
from meshcomm.core.layouts.boxes import Box
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.copies import exact_copy
from meshcomm.core.ranks import agreement
from meshcomm.core.ranks._call_scope import CallScope
from meshcomm.core.ranks.agreement import fingerprint
from meshcomm.core.ranks.calls import Collective, leave_with
from meshcomm.core.ranks.meshes import world_of
from meshcomm.core.ranks.mpi import plain_operation
from meshcomm.core.ranks.rank_sets import Group, RankSet
from meshcomm.core.transport.choose import exchange, gathers_at_once, on_arrays
from meshcomm.core.transport.exchange import ExchangeSpec, from_boxes
from meshcomm.core.transport.reduce import AllReduce, reduction
from meshcomm.errors import GroupError, ShapeError

if TYPE_CHECKING:
    from mpi4py import MPI


RankRows: TypeAlias = tuple[tuple[int, ...], ...]
"""The rows of a group assignment, or pairs of a source and a target rank."""

RunOnArray: TypeAlias = Callable[[Array], Array]


class _CommCall(NamedTuple):
    """A collective operation and its arguments.

    Parameters
    ----------
    operation: name of the operation
    x: array of this rank
    rows_for: function from a rank set to the rows, not checked yet
    arguments: other arguments
    """

    operation: str
    x: ArrayLike
    rows_for: Callable[[RankSet], object]
    arguments: tuple[object, ...] = ()


@traceable()
def all_to_all(  # noqa: PLR0917 - the order of the seed's op
    x: ArrayLike,
    group_assignment: Groups | None,
    concat_dimension: int,
    split_dimension: int,
    split_count: int,
    comm: "MPI.Intracomm | None" = None,
) -> Array:
    """Return one block from each rank of the group, concatenated. Collective over *comm*, by default COMM_WORLD.

    Each rank cuts its *x* into equal blocks along one axis and sends block j to position j of the group. It
    concatenates the blocks that it receives, in the order of the group. All ranks pass the same shape and dtype.
    Source: the AllToAll op of TensorFlow.

    Parameters
    ----------
    x: the array of this rank
    group_assignment: rows of ranks, each a group
    concat_dimension, split_dimension: the axes to concatenate and to cut along, not negative; they may be equal
    split_count: the number of blocks, which is the size of the groups
    comm: a communicator of mpi4py

    ``GroupError`` or ``ShapeError``, on all ranks, unless the groups have *split_count* ranks and it divides the axis.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     blocks = world.run(lambda: all_to_all([[["A", "B"], ["C", "D"]][world.rank]], [[0, 1]], 0, 1, 2).tolist())
    >>> blocks
    [[['A'], ['C']], [['B'], ['D']]]
    """

    def build(rank_set: RankSet, array: Array, rows: RankRows) -> RunOnArray:
        shape = array.shape
        size = _checked_all_to_all(shape, rows, concat_dimension, split_dimension, split_count)
        group, position = _group(rank_set, _check_cover(rows, rank_set))
        length = shape[split_dimension] // size
        block_shape = _with_length(shape, split_dimension, length)
        target_shape = _with_length(block_shape, concat_dimension, block_shape[concat_dimension] * size)

        def box(**index: int) -> Box:
            return _box_of(block_shape, [("receiver", split_dimension), ("sender", concat_dimension)], size, **index)

        boxes = [box(sender=i) for i in range(size)], [box(receiver=i) for i in range(size)]
        call = f"all_to_all of {shape} {array.dtype} {split_dimension} {concat_dimension}"
        box_exchange = from_boxes(array.itemsize, position, *boxes)
        return on_arrays(exchange(group, [box_exchange], ExchangeSpec(fingerprint(call), array.nbytes)), target_shape)

    arguments = (concat_dimension, split_dimension, split_count)
    return _run_agreed(_CommCall("all_to_all", x, _rows_for(group_assignment), arguments), comm, build)


@traceable()
def all_gather(
    x: ArrayLike,
    group_assignment: Groups | None = None,
    dimension: int = 0,
    comm: "MPI.Intracomm | None" = None,
) -> Array:
    """Return the *x* of every rank of the group, concatenated in its order. Collective over *comm*.

    All ranks pass the same shape and dtype. Source: AllGather of XLA.

    Parameters
    ----------
    x: the array of this rank
    group_assignment: rows of ranks, each a group; by default one group of all ranks
    dimension: the axis to concatenate along, not negative
    comm: a communicator of mpi4py, by default COMM_WORLD

    ``GroupError`` or ``ShapeError``, on all ranks, for rows or an axis that do not fit.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: all_gather([world.rank]).tolist())
    [[0, 1], [0, 1]]
    """

    def build(rank_set: RankSet, array: Array, rows: RankRows) -> RunOnArray:
        shape = array.shape
        check_axis("dimension", dimension, shape)
        group, position = _group(rank_set, _check_cover(rows, rank_set))
        size = len(group.members)
        target_shape = _with_length(shape, dimension, shape[dimension] * size)
        axes = [("sender", dimension)]
        sources = [_box_of(shape, axes, size, sender=i) for i in range(size)]
        box_exchange = from_boxes(array.itemsize, position, sources, [_box_of(shape, axes, size)] * size)
        call_id, nbytes = fingerprint(f"all_gather of {shape} {array.dtype} {dimension}"), array.nbytes * size
        spec = ExchangeSpec(call_id, nbytes, gathers=gathers_at_once(nbytes, size))
        return on_arrays(exchange(group, [box_exchange], spec), target_shape)

    return _run_agreed(_CommCall("all_gather", x, _rows_for(group_assignment), (dimension,)), comm, build)


@traceable()
def all_reduce(
    x: ArrayLike,
    group_assignment: Groups | None = None,
    op: "str | MPI.Op" = "sum",
    comm: "MPI.Intracomm | None" = None,
) -> Array:
    """Return the *x* of all ranks of the group, reduced elementwise. Collective over *comm*.

    NumPy reduces in the dtype of *x* and in the order of the group, so the result is the same to the last bit on all
    ranks and in every run. Source: AllReduce of XLA.

    Parameters
    ----------
    x: the array of this rank, of a numeric dtype or bool
    group_assignment: rows of ranks, each a group; by default one group of all ranks
    op: ``sum``, which means "any" for bool, ``prod``, ``min`` or ``max``; or one of these of MPI, such as ``MPI.SUM``
    comm: a communicator of mpi4py, by default COMM_WORLD

    ``GroupError`` or ``DTypeError``, on all ranks, for rows or a dtype that do not fit.

    >>> import meshcomm as mc
    >>> with mc.simulate(3) as world:
    ...     world.run(lambda: all_reduce([world.rank, 1]).tolist())
    [[3, 3], [3, 3], [3, 3]]
    """

    op_name = plain_operation(op)

    def build(rank_set: RankSet, array: Array, rows: RankRows) -> RunOnArray:
        reduce = reduction(op_name, array.dtype)
        group, position = _group(rank_set, _check_cover(rows, rank_set))
        return AllReduce(group, position, reduce, array.size, array.itemsize).run

    return _run_agreed(_CommCall("all_reduce", x, _rows_for(group_assignment), (op_name,)), comm, build)


@traceable()
def reduce_scatter(
    x: ArrayLike,
    group_assignment: Groups | None = None,
    dimension: int = 0,
    op: "str | MPI.Op" = "sum",
    comm: "MPI.Intracomm | None" = None,
) -> Array:
    """Return one block of the reduced *x* of the group: block i at position i. Collective over *comm*.

    Source: ReduceScatter of XLA.

    Parameters
    ----------
    x: the array of this rank
    group_assignment: rows of ranks, each a group; by default one group of all ranks
    dimension: the axis to cut into blocks, not negative; the size of the groups must divide it
    op: reduction, as in `all_reduce`
    comm: a communicator of mpi4py, by default COMM_WORLD

    ``GroupError``, ``ShapeError`` or ``DTypeError``, on all ranks, for rows, an axis or a dtype that do not fit.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: reduce_scatter([world.rank, 5]).tolist())
    [[1], [10]]
    """

    op_name = plain_operation(op)

    def build(rank_set: RankSet, array: Array, rows: RankRows) -> RunOnArray:
        shape = array.shape
        check_axis("dimension", dimension, shape)
        group, position = _group(rank_set, _check_cover(rows, rank_set))
        size = len(group.members)
        if shape[dimension] % size:
            raise ShapeError(
                f"axis {dimension} of shape {shape} has {counted(shape[dimension], 'element')}; "
                f"the group size {size} does not divide it"
            )
        reduce = reduction(op_name, array.dtype)
        block_shape = _with_length(shape, dimension, shape[dimension] // size)
        axes = [("sender", 0), ("receiver", dimension)]
        sources = [_box_of(block_shape, axes, size, sender=i) for i in range(size)]
        targets = [_box_of(block_shape, axes, size, receiver=i) for i in range(size)]
        spec = ExchangeSpec(fingerprint(f"reduce_scatter of {shape} {array.dtype} {dimension}"), array.nbytes)
        box_exchange = from_boxes(array.itemsize, position, sources, targets)
        scatter = on_arrays(exchange(group, [box_exchange], spec), (size, *block_shape))

        def run(a: Array) -> Array:
            with np.errstate(all="ignore"):
                return reduce(scatter(a))

        return run

    return _run_agreed(_CommCall("reduce_scatter", x, _rows_for(group_assignment), (dimension, op_name)), comm, build)


@traceable()
def broadcast(
    x: ArrayLike, group_assignment: Groups | None = None, root: int = 0, comm: "MPI.Intracomm | None" = None
) -> Array:
    """Return the *x* of one rank on every rank of its group. Collective over *comm*.

    All ranks pass the same shape and dtype. Source: CollectiveBroadcast of XLA.

    Parameters
    ----------
    x: the array of this rank
    group_assignment: rows of ranks, each a group; by default one group of all ranks
    root: position in the group of the rank that sends its *x*
    comm: a communicator of mpi4py, by default COMM_WORLD

    ``GroupError``, on all ranks, for rows that do not fit or a root that is no position in the groups.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: broadcast([world.rank], root=1).tolist())
    [[1], [1]]
    """

    def build(rank_set: RankSet, array: Array, rows: RankRows) -> RunOnArray:
        group, position = _group(rank_set, _check_cover(rows, rank_set))
        size, whole_box = len(group.members), _whole_box(array.shape)
        check_integer("root", root)
        if not 0 <= root < size:
            raise GroupError(f"root {quote(root)} is not a position in groups of {size} ranks")
        sources = [((i, i + 1), *whole_box) for i in range(size)]
        box_exchange = from_boxes(array.itemsize, position, sources, [sources[root]] * size)
        spec = ExchangeSpec(fingerprint(f"broadcast of {array.shape} {array.dtype} {root}"), array.nbytes, root=root)
        return on_arrays(exchange(group, [box_exchange], spec), array.shape)

    return _run_agreed(_CommCall("broadcast", x, _rows_for(group_assignment), (root,)), comm, build)


@traceable()
def collective_permute(x: ArrayLike, source_target_pairs: Pairs, comm: "MPI.Intracomm | None" = None) -> Array:
    """Return the *x* of the source rank of this rank; zeros if it has none. Collective over *comm*.

    *source_target_pairs* are pairs of a source and a target rank. A rank may be a source once and a target once. All
    ranks pass the same shape, dtype and pairs. ``GroupError`` on all ranks if a pair does not fit. Source:
    CollectivePermute of XLA.

    >>> import meshcomm as mc
    >>> with mc.simulate(3) as world:
    ...     world.run(lambda: collective_permute([world.rank + 1], [(0, 1), (1, 2)]).tolist())
    [[0], [1], [2]]
    """

    def build(rank_set: RankSet, array: Array, pairs: RankRows) -> RunOnArray:
        shape, rank, size = array.shape, rank_set.rank, len(rank_set.ranks)
        _check_pairs(pairs, rank_set)
        source_of = {target: source for source, target in pairs}
        sources = [((i, i + 1), *_whole_box(shape)) for i in range(size)]
        empty_box = ((0, 0), *_whole_box(shape))
        targets = [sources[source_of[i]] if i in source_of else empty_box for i in range(size)]
        spec = ExchangeSpec(
            fingerprint(f"collective_permute of {shape} {array.dtype} {pairs}"), array.nbytes, permutes=True
        )
        box_exchange = from_boxes(array.itemsize, rank, sources, targets)
        permute = on_arrays(exchange(rank_set.everyone, [box_exchange], spec), shape if rank in source_of else (0,))

        def run(a: Array) -> Array:
            result = permute(a)
            return result if rank in source_of else np.zeros(a.shape, a.dtype)

        return run

    return _run_agreed(_CommCall("collective_permute", x, _nested_rows(source_target_pairs)), comm, build)


def _run_agreed(
    call: _CommCall, comm: "MPI.Intracomm | None", build: Callable[[RankSet, Array, RankRows], RunOnArray]
) -> Array:
    """Return the result of an operation that *build* makes and all ranks agree on. Collective over *comm*.

    What was built before is used again without agreement.
    """
    world = world_of(comm)
    rank_set = world.rank_set(range(world.size))
    name = call.operation
    with CallScope(name, rank_set):
        array, error = _as_contiguous(call.x)
        rows, arguments = call.rows_for(rank_set), tuple(map(plain_value, call.arguments))
        if error is not None:
            agreement.agree(rank_set, None, error)
        key: Hashable = (name, rows, arguments, array.shape, array.dtype)
        exact_key = key if _is_exact(rows, arguments) else None
        run = _OPERATION.prepared(rank_set, exact_key, (name, arguments, array, rows, rank_set.ranks, build), rank_set)
        try:
            result: Array = run(array)
        except BaseException as run_error:
            leave_with(run_error, rank_set)
            raise
        return result


def _call_text(  # noqa: PLR0917 - the subject of a call
    name: str, arguments: tuple[object, ...], array: Array, rows: object, ranks: Ranks, build: object
) -> str:
    return f"{name}{_argument_text(arguments)} of {array.shape} {array.dtype} over {_argument_text(rows)} of {ranks}"


_OPERATION = Collective[Array](_call_text, lambda _, __, x, rows, ___, build, rank_set: build(rank_set, x, rows))
"""An operation on plain arrays; its subject ends with the function that builds the operation for a rank set."""


def _argument_text(value: object) -> str:
    """Return the text of arguments that ranks compare."""
    try:
        return repr(value)
    except ValueError:  # an integer of thousands of digits, which no operation takes
        return quote(value)


def _is_exact(rows: object, arguments: tuple[object, ...]) -> bool:
    """Return whether a call can be looked up: True and 1.0 equal 1, but only one of them is an integer."""
    if not isinstance(rows, tuple) or not {*map(type, rows)} <= {tuple}:
        return False
    return {*map(type, arguments)} <= {int, str} and {*map(type, chain.from_iterable(rows))} <= {int}


def _as_contiguous(x: ArrayLike) -> tuple[Array, Exception | None]:
    """Return *x* as a C-contiguous array, and the error if it cannot be one."""
    try:
        array = as_array(x)
        return (array if array.flags.c_contiguous else exact_copy(array)).view(np.ndarray), None
    except Exception as error:
        return np.empty(0), error


def _nested_rows(pairs: Groups | Pairs) -> Callable[[RankSet], object]:
    """Return a function from a rank set to *pairs* as nested tuples; as they are if not nested, for the checks."""
    rows: Value = pairs.tolist() if isinstance(pairs, np.ndarray) else pairs
    try:
        row_tuples = tuple([tuple(map(plain_value, row)) for row in rows])
    except TypeError:
        return lambda rank_set: rows
    return lambda rank_set: row_tuples


def _rows_for(groups: Groups | None) -> Callable[[RankSet], object]:
    """Return a function from a rank set to the rows of *groups*; None is one row of all its ranks."""
    return _nested_rows(groups) if groups is not None else lambda rank_set: (tuple(range(len(rank_set.ranks))),)


def _checked_all_to_all(
    shape: Shape, rows: object, concat_dimension: int, split_dimension: int, split_count: int
) -> int:
    """Return the split count after the checks of TensorFlow's op, in their order."""
    check_integer("split_count", split_count)
    if split_count < 1:
        raise GroupError(f"split_count {quote(split_count)} must at least be one.")
    size = _row_length(rows)
    if split_count != size:
        raise GroupError(
            f"split_count {quote(split_count)} must equal the size of the second dimension of group_assignment {size}"
        )
    check_axis("concat_dimension", concat_dimension, shape)
    check_axis("split_dimension", split_dimension, shape)
    if shape[split_dimension] % split_count:
        raise ShapeError(
            f"input dimension {shape[split_dimension]} not divisible by split_count {split_count}: "
            f"axis {split_dimension} of shape {shape} cannot be split into equal blocks"
        )
    return split_count


def _row_length(rows: object) -> int:
    lengths: set[int] = set()
    if isinstance(rows, tuple) and all(isinstance(row, tuple) for row in rows):
        lengths = {len(row) for row in rows}
    if len(lengths) != 1 or not all(lengths):
        hint = f"; mesh.groups_along({rows.dim_names[0]!r}) is one" if isinstance(rows, Mesh) else ""
        raise GroupError(
            f"group_assignment must have rank 2: rows of one length, at least one, not {quote_briefly(rows)}{hint}"
        )
    return lengths.pop()


def _check_cover(rows: RankRows, rank_set: RankSet) -> RankRows:
    """Return *rows* if every rank of the rank set is in exactly one. Source: the constraints of StableHLO."""
    _row_length(rows)
    size = len(rank_set.ranks)
    seen: set[int] = set()
    for rank in chain.from_iterable(rows):
        check_integer("a rank in group_assignment", rank)
        if not 0 <= rank < size:
            raise GroupError(
                f"group_assignment {quote_briefly(rows)} names rank {quote(rank)}, but there are ranks 0 to {size - 1}"
            )
        if rank in seen:
            raise GroupError(f"group_assignment {quote_briefly(rows)} names rank {rank} twice")
        seen.add(rank)
    if len(seen) < size:
        missing = sorted(set(range(size)) - seen)
        raise GroupError(
            f"group_assignment {quote_briefly(rows)} must name every rank of the {size}; "
            f"in no group: {', '.join(map(str, missing[:8]))}{', ...' if len(missing) > 8 else ''}"
        )
    return rows


def _check_pairs(pairs: RankRows, rank_set: RankSet) -> None:
    size = len(rank_set.ranks)
    if not isinstance(pairs, tuple):
        raise GroupError(f"source_target_pairs must be pairs of ranks, not {quote_briefly(pairs)}")
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise GroupError(f"source_target_pairs must be pairs of ranks, not {pair}")
        for rank in pair:
            check_integer("a rank in source_target_pairs", rank)
            if not 0 <= rank < size:
                raise GroupError(f"source_target_pairs names rank {quote(rank)}, but there are ranks 0 to {size - 1}")
    for role, ranks in (("source", [s for s, _ in pairs]), ("target", [t for _, t in pairs])):
        duplicate = next((rank for rank in ranks if ranks.count(rank) > 1), None)
        if duplicate is not None:
            raise GroupError(f"source_target_pairs {quote_briefly(pairs)} names rank {duplicate} as a {role} twice")


def _group(rank_set: RankSet, rows: RankRows) -> tuple[Group, int]:
    """Return this rank's group among *rows*, and its position in it."""
    color = next(i for i, row in enumerate(rows) if rank_set.rank in row)
    members = tuple(rank_set.ranks[rank] for rank in rows[color])
    return rank_set.group(rows, color, members), rows[color].index(rank_set.rank)


def _with_length(shape: Shape, axis: int, length: int) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])


def _whole_box(shape: Shape) -> Box:
    return tuple((0, length) for length in shape)


def _box_of(block_shape: Shape, axes: list[tuple[str, int]], count: int, **index: int) -> Box:
    """Return a box of the array of all ranks of a group, which has *axes* and those of a block.

    Parameters
    ----------
    block_shape: shape of a block
    axes: pairs of the name of an axis of length *count*, and the axis of the block before which it is inserted
    count: the number of ranks of the group
    index: by name, the index of the box along one of *axes*; along the others it is whole

    >>> _box_of((2, 3), [("sender", 1)], 4, sender=2)
    ((0, 2), (2, 3), (0, 3))
    """
    box: list[tuple[int, int]] = []
    for axis in range(len(block_shape) + 1):
        for name, next_axis in axes:
            if next_axis == axis:
                box.append((index[name], index[name] + 1) if name in index else (0, count))
        box += [(0, block_shape[axis])] if axis < len(block_shape) else []
    return tuple(box)
