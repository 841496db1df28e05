"""Collective operations on plain arrays, over the groups of a group assignment.

Each one moves boxes of a block between the ranks of a group, as a relayout does: see :mod:`meshcomm.transport`.

``group_assignment`` is an integer array of shape (groups, ranks per group): each row is a group, in the order that
decides positions; all ranks of the communicator must stand in it, once. None is one group of all ranks.
"""

from collections.abc import Callable, Hashable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm._arguments import as_array, check_axis, check_integer, plain_value, short
from meshcomm._tracing import traceable
from meshcomm._types import Array, Shape
from meshcomm.errors import GroupError, ShapeError
from meshcomm.layouts.boxes import Box
from meshcomm.memory.blocks import as_bytes
from meshcomm.memory.copies import exact_copy
from meshcomm.ranks.agreement import fingerprint
from meshcomm.ranks.calls import program
from meshcomm.ranks.meshes import world_of
from meshcomm.ranks.teams import Group, Team
from meshcomm.ranks.watchdog import waiting
from meshcomm.transport.choose import exchange, gathers_at_once, on_arrays
from meshcomm.transport.exchange import Terms, from_boxes
from meshcomm.transport.reduce import AllReduce, reduction

if TYPE_CHECKING:
    from mpi4py import MPI


Assignment: TypeAlias = tuple[tuple[int, ...], ...]
Run: TypeAlias = Callable[[Array], Array]


@traceable()
def all_to_all(
    x: ArrayLike,
    group_assignment: Any,
    concat_dimension: int,
    split_dimension: int,
    split_count: int,
    comm: "MPI.Intracomm | None" = None,
) -> Array:
    """Return blocks of the *x* of every rank of the group, joined. Collective over *comm*, by default COMM_WORLD.

    *x* is split into *split_count* equal blocks along *split_dimension*; block j goes to position j of the group, and
    the blocks received are concatenated along *concat_dimension* in the order of the group. All ranks pass the same
    shape and dtype. ``GroupError`` or ``ShapeError``, on all ranks, unless *split_count* is the size of the groups
    and divides *x*; axes are not negative. Source: the AllToAll op of TensorFlow.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     blocks = world.run(lambda: all_to_all([[["A", "B"], ["C", "D"]][world.rank]], [[0, 1]], 0, 1, 2).tolist())
    >>> blocks
    [[['A'], ['C']], [['B'], ['D']]]
    """

    def build(team: Team, array: Array, rows: Assignment) -> Run:
        shape = array.shape
        count = _checked_all_to_all(shape, rows, concat_dimension, split_dimension, split_count)
        group, position = _group(team, _check_cover(rows, team))
        length = shape[split_dimension] // count
        block = _replaced(shape, split_dimension, length)
        target_shape = _replaced(block, concat_dimension, block[concat_dimension] * count)

        def box(**at: int) -> Box:
            # The array of all ranks, with an axis for the receiver before the one that is split, and an axis for the
            # sender before the one that is concatenated.
            return _box_of(block, [("receiver", split_dimension), ("sender", concat_dimension)], count, **at)

        boxes = [box(sender=i) for i in range(count)], [box(receiver=i) for i in range(count)]
        call = f"all_to_all of {shape} {array.dtype} {split_dimension} {concat_dimension}"
        tensor = from_boxes(array.itemsize, position, *boxes)
        return on_arrays(exchange(group, [tensor], Terms(fingerprint(call), array.nbytes)), target_shape)

    arguments = (concat_dimension, split_dimension, split_count)
    return _collective("all_to_all", x, _rows(group_assignment), arguments, comm, build)


@traceable()
def all_gather(x: ArrayLike, group_assignment: Any, dimension: int, comm: "MPI.Intracomm | None" = None) -> Array:
    """Return the *x* of every rank of the group, concatenated along *dimension*. Collective over *comm*.

    In the order of the group. All ranks pass the same shape and dtype. ``GroupError`` or ``ShapeError`` on all ranks.
    Source: AllGather of XLA.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: all_gather([world.rank], [[1, 0]], 0).tolist())
    [[1, 0], [1, 0]]
    """

    def build(team: Team, array: Array, rows: Assignment) -> Run:
        shape = array.shape
        check_axis("dimension", dimension, shape)
        group, position = _group(team, _check_cover(rows, team))
        count = len(group.members)
        target_shape = _replaced(shape, dimension, shape[dimension] * count)
        axes = [("sender", dimension)]
        sources = [_box_of(shape, axes, count, sender=i) for i in range(count)]
        tensor = from_boxes(array.itemsize, position, sources, [_box_of(shape, axes, count)] * count)
        number, nbytes = fingerprint(f"all_gather of {shape} {array.dtype} {dimension}"), array.nbytes * count
        terms = Terms(number, nbytes, gathers=gathers_at_once(nbytes, count))
        return on_arrays(exchange(group, [tensor], terms), target_shape)

    return _collective("all_gather", x, _rows(group_assignment), (dimension,), comm, build)


@traceable()
def all_reduce(x: ArrayLike, group_assignment: Any, op: str = "sum", comm: "MPI.Intracomm | None" = None) -> Array:
    """Return the *x* of all ranks of the group, reduced elementwise. Collective over *comm*.

    *op* is ``sum``, ``prod``, ``min`` or ``max``, as NumPy computes it in the dtype of *x*, in the order of the group:
    the result is the same to the last bit on all ranks and in every run. All numeric dtypes and bool, for which sum
    means "any". ``DTypeError`` for others. Source: AllReduce of XLA.

    >>> import meshcomm as mc
    >>> with mc.simulate(3) as world:
    ...     world.run(lambda: all_reduce([world.rank, 1], [[0, 1, 2]]).tolist())
    [[3, 3], [3, 3], [3, 3]]
    """

    def build(team: Team, array: Array, rows: Assignment) -> Run:
        reduce = reduction(op, array.dtype)
        group, position = _group(team, _check_cover(rows, team))
        return AllReduce(group, position, reduce, array.size, array.itemsize).run

    return _collective("all_reduce", x, _rows(group_assignment), (op,), comm, build)


@traceable()
def reduce_scatter(
    x: ArrayLike, group_assignment: Any, dimension: int, op: str = "sum", comm: "MPI.Intracomm | None" = None
) -> Array:
    """Return one block, along *dimension*, of the reduced *x* of the group. Collective over *comm*.

    The rank at position i of the group gets block i. The group must divide the dimension; *op* is as in `all_reduce`.
    ``GroupError``, ``ShapeError`` or ``DTypeError`` on all ranks. Source: ReduceScatter of XLA.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: reduce_scatter([world.rank, 5], [[0, 1]], 0).tolist())
    [[1], [10]]
    """

    def build(team: Team, array: Array, rows: Assignment) -> Run:
        shape = array.shape
        check_axis("dimension", dimension, shape)
        group, position = _group(team, _check_cover(rows, team))
        count = len(group.members)
        if shape[dimension] % count:
            raise ShapeError(
                f"axis {dimension} of shape {shape} has {shape[dimension]} elements; "
                f"the group size {count} does not divide it"
            )
        reduce = reduction(op, array.dtype)
        block = _replaced(shape, dimension, shape[dimension] // count)
        axes = [("sender", 0), ("receiver", dimension)]
        sources = [_box_of(block, axes, count, sender=i) for i in range(count)]
        targets = [_box_of(block, axes, count, receiver=i) for i in range(count)]
        terms = Terms(fingerprint(f"reduce_scatter of {shape} {array.dtype} {dimension}"), array.nbytes)
        tensor = from_boxes(array.itemsize, position, sources, targets)
        scatter = on_arrays(exchange(group, [tensor], terms), (count, *block))
        return lambda a: reduce(scatter(a))

    return _collective("reduce_scatter", x, _rows(group_assignment), (dimension, op), comm, build)


@traceable()
def broadcast(x: ArrayLike, group_assignment: Any, root: int = 0, comm: "MPI.Intracomm | None" = None) -> Array:
    """Return the *x* of the rank at position *root* of the group. Collective over *comm*.

    All ranks pass the same shape and dtype. ``GroupError`` on all ranks unless the group has that position. Source:
    CollectiveBroadcast of XLA.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     world.run(lambda: broadcast([world.rank], [[0, 1]], root=1).tolist())
    [[1], [1]]
    """

    def build(team: Team, array: Array, rows: Assignment) -> Run:
        group, _ = _group(team, _check_cover(rows, team))
        check_integer("root", root)
        if not 0 <= root < len(group.members):
            raise GroupError(f"root {root} is not a position in groups of {len(group.members)} ranks")

        def run(a: Array) -> Array:
            result = exact_copy(a)
            group.communicator().broadcast(as_bytes(result), root)
            return result

        return run

    return _collective("broadcast", x, _rows(group_assignment), (root,), comm, build)


@traceable()
def collective_permute(
    x: ArrayLike, source_target_pairs: Iterable[tuple[int, int]], comm: "MPI.Intracomm | None" = None
) -> Array:
    """Return the *x* of the rank that is paired with this one as its source, else zeros. Collective over *comm*.

    *source_target_pairs* are pairs of ranks; a rank may be a source once and a target once. All ranks pass the same
    shape, dtype and pairs. ``GroupError`` on all ranks otherwise. Source: CollectivePermute of XLA.

    >>> import meshcomm as mc
    >>> with mc.simulate(3) as world:
    ...     world.run(lambda: collective_permute([world.rank + 1], [(0, 1), (1, 2)]).tolist())
    [[0], [1], [2]]
    """

    def build(team: Team, array: Array, pairs: Assignment) -> Run:
        shape, me, size = array.shape, team.rank, len(team.ranks)
        _check_pairs(pairs, team)
        source_of = {target: source for source, target in pairs}
        sources = [((i, i + 1), *_whole(shape)) for i in range(size)]
        nothing = ((0, 0), *_whole(shape))
        targets = [sources[source_of[i]] if i in source_of else nothing for i in range(size)]
        terms = Terms(fingerprint(f"collective_permute of {shape} {array.dtype} {pairs}"), array.nbytes, permutes=True)
        tensor = from_boxes(array.itemsize, me, sources, targets)
        permute = on_arrays(exchange(team.everyone, [tensor], terms), shape if me in source_of else (0,))

        def run(a: Array) -> Array:
            result = permute(a)
            return result if me in source_of else np.zeros(a.shape, a.dtype)

        return run

    return _collective("collective_permute", x, _pairs(source_target_pairs), (), comm, build)


def _collective(
    operation: str,
    x: ArrayLike,
    rows_for: Callable[[Team], Any],
    arguments: tuple[Any, ...],
    comm: "MPI.Intracomm | None",
    build: Callable[[Team, Array, Any], Run],
) -> Array:
    """Run an operation, built and agreed on by all ranks when it is new to them."""
    world = world_of(comm)
    team = world.team(range(world.size))
    with waiting(operation, team):
        array, error = _normalised(x)
        rows, plain = rows_for(team), tuple(map(plain_value, arguments))

        def describe() -> str:
            return f"{operation}{plain} of {array.shape} {array.dtype} over {rows} of {team.ranks}"

        def checked() -> Run:
            if error is not None:
                raise error
            return build(team, array, rows)

        key: Hashable = (operation, rows, plain, array.shape, array.dtype)
        exact = error is None and _is_exact(rows, plain)
        run = program(team, key if exact else None, describe, checked)
        result: Array = run(array)
        return result


def _is_exact(rows: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether a call can be looked up: True and 1.0 equal 1, but only one of them is an integer."""
    return all(type(value) in (int, str) for value in arguments) and (
        isinstance(rows, tuple) and all(isinstance(row, tuple) and all(type(r) is int for r in row) for row in rows)
    )


def _normalised(x: ArrayLike) -> tuple[Array, Exception | None]:
    """Return *x* as a C-contiguous array, or what is wrong with it."""
    try:
        array = as_array(x)
        return (array if array.flags.c_contiguous else exact_copy(array)).view(np.ndarray), None
    except Exception as error:
        return np.empty(0), error


def _pairs(pairs: Any) -> Callable[[Team], Any]:
    """Return nested tuples for every team; what is not nested stays as it is, for the checks to name."""
    if isinstance(pairs, np.ndarray):
        pairs = pairs.tolist()
    try:
        rows = tuple([tuple(map(plain_value, row)) for row in pairs])
    except TypeError:
        rows = pairs
    return lambda team: rows


def _rows(assignment: Any) -> Callable[[Team], Any]:
    """Return the rows of a group assignment for a team, None being one row of all its ranks."""
    return _pairs(assignment) if assignment is not None else lambda team: (tuple(range(len(team.ranks))),)


def _checked_all_to_all(
    shape: tuple[int, ...], rows: Any, concat_dimension: int, split_dimension: int, split_count: int
) -> int:
    """Return the split count; the checks, in their order, are those of the op's shape function."""
    check_integer("split_count", split_count)
    if split_count < 1:
        raise GroupError(f"split_count {split_count} must at least be one.")
    size = _row_length(rows)
    if split_count != size:
        raise GroupError(
            f"split_count {split_count} must equal the size of the second dimension of group_assignment {size}"
        )
    check_axis("concat_dimension", concat_dimension, shape)
    check_axis("split_dimension", split_dimension, shape)
    if shape[split_dimension] % split_count:
        raise ShapeError(
            f"input dimension {shape[split_dimension]} not divisible by split_count {split_count}: "
            f"axis {split_dimension} of shape {shape} cannot be split into equal blocks"
        )
    return split_count


def _row_length(rows: Any) -> int:
    nested = isinstance(rows, tuple) and all(isinstance(row, tuple) for row in rows)
    lengths = {len(row) for row in rows} if nested else set()
    if len(lengths) != 1 or not all(lengths):
        raise GroupError(f"group_assignment must have rank 2: rows of one length, at least one, not {short(rows)}")
    return lengths.pop()


def _check_cover(rows: Any, team: Team) -> Assignment:
    """Return *rows* if every rank of the team stands in them once; source: the constraints of StableHLO."""
    _row_length(rows)
    size = len(team.ranks)
    seen: set[int] = set()
    for rank in chain.from_iterable(rows):
        check_integer("a rank in group_assignment", rank)
        if not 0 <= rank < size:
            raise GroupError(f"group_assignment {short(rows)} names rank {rank}, but there are ranks 0 to {size - 1}")
        if rank in seen:
            raise GroupError(f"group_assignment {short(rows)} names rank {rank} twice")
        seen.add(rank)
    if len(seen) < size:
        missing = sorted(set(range(size)) - seen)
        raise GroupError(
            f"group_assignment {short(rows)} must name every rank of the {size}; "
            f"in no group: {', '.join(map(str, missing[:8]))}{', ...' if len(missing) > 8 else ''}"
        )
    checked: Assignment = rows
    return checked


def _check_pairs(pairs: Any, team: Team) -> None:
    size = len(team.ranks)
    if not isinstance(pairs, tuple):
        raise GroupError(f"source_target_pairs must be pairs of ranks, not {short(pairs)}")
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise GroupError(f"source_target_pairs must be pairs of ranks, not {pair}")
        for rank in pair:
            check_integer("a rank in source_target_pairs", rank)
            if not 0 <= rank < size:
                raise GroupError(f"source_target_pairs names rank {rank}, but there are ranks 0 to {size - 1}")
    for what, ranks in (("source", [s for s, _ in pairs]), ("target", [t for _, t in pairs])):
        twice = next((rank for rank in ranks if ranks.count(rank) > 1), None)
        if twice is not None:
            raise GroupError(f"source_target_pairs {short(pairs)} names rank {twice} as a {what} twice")


def _group(team: Team, rows: Assignment) -> tuple[Group, int]:
    """Return this rank's group among *rows*, and its place in it. Local."""
    color = next(i for i, row in enumerate(rows) if team.rank in row)
    members = tuple(team.ranks[rank] for rank in rows[color])
    return team.group(rows, color, members), rows[color].index(team.rank)


def _replaced(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    return (*shape[:axis], length, *shape[axis + 1 :])


def _whole(shape: Shape) -> Box:
    return tuple((0, length) for length in shape)


def _box_of(block: Shape, axes: list[tuple[str, int]], count: int, **at: int) -> Box:
    """Return a box of the array of all ranks of a group: the axes of *block*, and an axis of *count* for others.

    *axes* are pairs of a name and the axis of *block* that the new one stands before; *at* says by name where the box
    is along new axes; along the others it is whole.

    >>> _box_of((2, 3), [("sender", 1)], 4, sender=2)
    ((0, 2), (2, 3), (0, 3))
    """
    box: list[tuple[int, int]] = []
    for axis in range(len(block) + 1):
        for name, before in axes:
            if before == axis:
                box.append((at[name], at[name] + 1) if name in at else (0, count))
        box += [(0, block[axis])] if axis < len(block) else []
    return tuple(box)
