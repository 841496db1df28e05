"""Relayouts of several tensors: small tensors that the same ranks exchange share one exchange."""

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from enum import Enum
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from meshcomm.core._arguments import counted, quote
from meshcomm.core._callers import warn
from meshcomm.core._mistakes import suggestion
from meshcomm.core._tracing import Value, is_traced, untraced
from meshcomm.core._tuning import DEFAULT_SCRATCH, MERGED_UP_TO
from meshcomm.core._types import Array, Ranks
from meshcomm.core.arrays._storage import refresh, write_back
from meshcomm.core.arrays.compile import exchanging_steps, max_block_bytes, prepare, prepare_together
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.moving import relayout_text
from meshcomm.core.arrays.out import distribute_into, find_out_errors
from meshcomm.core.arrays.replicas import comparing_replicas
from meshcomm.core.arrays.trees import (
    Children,
    ListIndex,
    Node,
    TreePath,
    children_of,
    children_of_array_tree,
    holds_variables,
    is_one_array,
    name_of,
    node_of,
    rebuild,
)
from meshcomm.core.arrays.views import copy_block_into, writable_block
from meshcomm.core.failures.watch import named_operation
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.refinement import ranks_between
from meshcomm.core.plans.plan import Plan, plan_relayout
from meshcomm.core.ranks import agreement
from meshcomm.core.ranks.calls import Collective
from meshcomm.core.ranks.meshes import location_between
from meshcomm.core.ranks.rank_sets import Location
from meshcomm.errors import DTypeError, LayoutError

MoveAll: TypeAlias = Callable[[list[Array | None], list[Array | None]], list[Array | None]]
"""Function from blocks to new blocks, which are written into the blocks of the second list where it has some."""

RelayoutOne: TypeAlias = Callable[..., DTensor]
"""The relayout of one tensor; it may go through autograd."""

RelayoutJob: TypeAlias = tuple[DTensor, Layout, DTensor | None, Hashable]
"""A tensor, its new layout, the tensor to overwrite or None, and its `_shared_key`."""


@runtime_checkable
class FindsLayouts(Protocol):
    """Finds a layout by the name of a tensor, as a `LayoutMap` does."""

    def layout_for(self, name: Value, rank: int, /) -> object:
        """Return the layout of the tensor *name*, which has this number of axes; None if there is none."""


def say_unused(rules: FindsLayouts, names: Sequence[str], *, strict: bool, warns: bool) -> None:
    """Warn of *rules* that match none of the *names*, if this rank *warns*; if *strict*, raise ``LayoutError``."""
    report = getattr(rules, "report", None)  # a LayoutMap's
    unused_rules = report(names).unused if report is not None and (strict or warns) else ()
    if unused_rules:
        text = (
            f"no name matches {counted(len(unused_rules), 'rule')} of the LayoutMap: {quote(list(unused_rules))}"
            f"{suggestion(unused_rules[0], names)}; the names are {quote(list(names))}"
        )
        if strict:
            raise LayoutError(text)
        warn(text)


def are_many(tensors: object, layouts: object) -> bool:
    """Return whether *tensors* are several tensors: a list of numbers with one layout is one array."""
    if not isinstance(tensors, list | tuple):
        return isinstance(tensors, Mapping) or holds_variables(tensors)
    return not isinstance(layouts, Layout) or not is_one_array(tensors, allow_arrays=True)


def relayout_many(
    relayout: RelayoutOne, tensors: object, layouts: object, out: object, *, limit: int | None, name: str | None
) -> object:
    """Return the new tensors in a tree of the form of *tensors*. Collective over the meshes.

    Parameters
    ----------
    relayout: function for the relayout of one tensor
    tensors: a tree of DTensors and plain arrays
    layouts: one layout, or a tree or `LayoutMap` of layouts
    out: a tree of tensors to overwrite, or None
    limit: bytes of scratch for the whole call
    name: name of the call in messages
    """
    leaves = _TreeLeaves(layouts, out)
    node = node_of(tensors, leaves.add_leaf, leaves.children_at)
    jobs = leaves.jobs
    if leaves.has_traced:
        results = [relayout(t, layout, name, out=out, max_scratch_bytes=limit) for t, layout, out, _ in jobs]
    else:
        results = _relayout_together(relayout, jobs, leaves.paths, limit, name)
    return rebuild(node, results.__getitem__)


class _TreeLeaves:
    """The leaves of a tree of tensors, each with its layout and its result from trees of the same form."""

    def __init__(self, layouts: object, out: object) -> None:
        self._layouts, self._out = layouts, out
        self._rules: FindsLayouts | None = None
        if not isinstance(layouts, Layout | list | tuple | dict) and isinstance(
            layouts, FindsLayouts
        ):  # it takes long
            self._rules = layouts
        self.jobs: list[tuple[Value, Layout, DTensor | None, Hashable]] = []
        self.paths: list[TreePath] = []
        self.has_traced = False

    def children_at(self, tree: object, path: TreePath) -> Children | None:
        """Return the children of *tree* at *path*, None if it is an array.

        ``LayoutError`` if the trees of layouts or results have another number of them.
        """
        children = children_of_array_tree(tree, path) if path else children_of(tree)
        if children is None:
            return None
        entries = list(children[1])
        for tree_of_options in (self._layouts if self._rules is None else None, self._out):
            items = _item_at(tree_of_options, path)
            if isinstance(items, list | tuple) and len(items) != len(entries):
                path_text = f" at {_label(path)!r}" if path else ""
                raise LayoutError(
                    f"{counted(len(entries), 'tensor')}{path_text} need as many layouts and results, not {len(items)}"
                )
        return children[0], entries

    def add_leaf(self, path: TreePath, item: Value) -> Node:
        """Add a job for the tensor at *path*, and return its node; ``LayoutError`` if layout or out is wrong."""
        if type(item) is not DTensor:
            if is_traced(item):
                self.has_traced = True
            else:
                item = unwrapped(item)
        layout: object = self._layouts
        if self._rules is not None:
            name = path[0] if len(path) == 1 and type(path[0]) is not ListIndex else name_of(path)
            value = untraced(item)
            layout = self._rules.layout_for(name, value.ndim if isinstance(value, DTensor) else np.ndim(value))
        elif not isinstance(layout, Layout):
            layout = _item_at(layout, path)
        if not isinstance(layout, Layout):
            raise LayoutError(f"there is no layout for tensor {_label(path)!r}: {quote(layout)}")
        out = None if self._out is None else _item_at(self._out, path)
        if out is not None and not isinstance(out, DTensor):
            raise LayoutError(f"out must be a DTensor for tensor {_label(path)!r}, not {type(out).__name__}")
        number = len(self.jobs)
        self.jobs.append((item, layout, out, _shared_key(path)))
        self.paths.append(path)
        return ["array", number]


def _item_at(tree: Value, path: TreePath) -> Value:
    """Return the item of a tree of layouts or results at *path*. A layout, or None, counts for its whole branch."""
    for number, key in enumerate(path):
        if tree is None or isinstance(tree, Layout):
            break
        try:
            if isinstance(tree, DTensor):
                raise TypeError
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            raise LayoutError(
                f"there is nothing for tensor {_label(path[: number + 1])!r} in {type(tree).__name__} of layouts or "
                "results"
            ) from None
    return tree


def _label(path: TreePath) -> Hashable:
    """Return the name of the tensor at *path* in messages."""
    return path[0] if len(path) == 1 else ".".join(map(str, path))


def _shared_key(path: TreePath) -> Hashable:
    """Return a key for *path* that is equal on all ranks, by which they detect different orders.

    It is None in a flat list, and where a key of *path* is an object that differs from rank to rank.
    """
    if len(path) == 1:
        return None if type(path[0]) is ListIndex else _comparable_key(path[0])
    keys = [_comparable_key(key) for key in path]
    return None if None in keys else ".".join(map(str, keys))


def _comparable_key(key: Hashable) -> Hashable:
    """Return *key* in a form that is equal on all ranks: None for an object of any other class.

    Equal keys, such as ``"w"`` and ``np.str_("w")``, have equal forms.
    """
    if type(key) is str or type(key) is int:
        return key
    if isinstance(key, tuple):
        return tuple(map(_comparable_key, key))
    if isinstance(key, Enum):
        return f"{type(key).__name__}.{key.name}"
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bytes):
        return bytes(key)
    if isinstance(key, int | np.integer | np.bool_):
        return int(key)
    if isinstance(key, float | np.floating):
        return int(key) if float(key).is_integer() else float(key)
    return None


def _relayout_together(
    relayout: RelayoutOne,
    jobs: Sequence[tuple[object, Layout, DTensor | None, Hashable]],
    paths: Sequence[TreePath],
    limit: int | None,
    name: str | None,
) -> list[DTensor]:
    """Return the new tensors; tensors of the same ranks move in one batch. Collective over the meshes."""
    outs = [out for _, _, out, _ in jobs if out is not None]
    refresh([tensor for tensor, *_ in jobs])
    tensor_ids = {id(item) for item, *_ in jobs}
    first_error: Exception | None = None  # raised when all peers of this rank know of it
    if len({*map(id, outs), *tensor_ids}) < len(outs) + len(tensor_ids):
        first_error = LayoutError("out may name no tensor twice, and none of the tensors that are read")
    first_error = first_error or find_out_errors(
        [(t, out, target) for t, target, out, _ in jobs if out is not None and isinstance(t, DTensor)]
    )
    results: dict[int, DTensor] = {}
    jobs_by_ranks: dict[Ranks, list[tuple[int, RelayoutJob]]] = {}  # all ranks see the keys alike
    ranks_by_pair: dict[tuple[int, int], Ranks | None] = {}  # None if this rank is outside of both meshes
    for number, (tensor, layout, out, key) in enumerate(jobs):
        if not isinstance(tensor, DTensor):
            try:
                results[number] = distribute_into(tensor, layout, out, name)
            except Exception as error:
                first_error = first_error or _error_of_tensor(error, paths[number])
            continue
        meshes = tensor.layout.mesh, layout.mesh
        pair = id(meshes[0]), id(meshes[1])
        if pair not in ranks_by_pair:
            ranks_by_pair[pair] = None if location_between(*meshes) is None else ranks_between(*meshes)
        ranks_of_pair = ranks_by_pair[pair]
        if ranks_of_pair is None:
            results[number] = relayout(tensor, layout, name, out=None if first_error else out, max_scratch_bytes=limit)
        else:
            jobs_by_ranks.setdefault(ranks_of_pair, []).append((number, (tensor, layout, out, key)))
    _move_batches(list(jobs_by_ranks.values()), results, first_error, limit, name)
    write_back(outs)
    return [results[number] for number in range(len(jobs))]


def _error_of_tensor(error: Exception, path: TreePath) -> Exception:
    """Return *error* with the name of the array that it is about."""
    return type(error)(f"tensor {_label(path)!r}: {error}") if isinstance(error, LayoutError | DTypeError) else error


def _move_batches(
    numbered_jobs: list[list[tuple[int, RelayoutJob]]],
    results: dict[int, DTensor],
    first_error: Exception | None,
    limit: int | None,
    name: str | None,
) -> None:
    """Put the new tensors into *results*, by their numbers. Collective over the ranks of each batch.

    All batches run even if there is a *first_error*, because their ranks have to learn of it. It is raised at the end.
    """
    batches = [_Batch([job for _, job in jobs], limit) for jobs in numbered_jobs]
    for batch in batches:
        batch.check()
    for batch, jobs in zip(batches, numbered_jobs, strict=True):
        try:
            blocks = batch.run(name, first_error)
        except Exception as error:
            first_error = first_error or error
            continue
        for (number, job), block in zip(jobs, blocks, strict=True):
            results[number] = _result_tensor(job, block)
    if first_error is not None:
        raise first_error


def _result_tensor(job: RelayoutJob, block: Array | None) -> DTensor:
    tensor, layout, out, _ = job
    if out is not None:
        return copy_block_into(out, block)
    if layout.match_axis is not None:
        layout = layout.matched(tensor.layout)
    return DTensor(block, layout, tensor.shape, tensor.dtype)


class _Batch:
    """Tensors that move together, among the same ranks."""

    def __init__(self, jobs: Sequence[RelayoutJob], limit: int | None) -> None:
        self._jobs, self._limit = jobs, limit
        # Whether an out is given, not whether this rank has its block: all ranks see this alike.
        self._specs = tuple([(t.layout, new, t.shape, t.dtype, out is not None, key) for t, new, out, key in jobs])

    def check(self) -> None:
        """Raise the errors of planning, unless this batch was planned before.

        All batches are checked before one moves. A rank may take part in one batch only, and does not see errors of
        the others; so a rank that sees one must not have begun to communicate.
        """
        location = location_between(self._jobs[0][0].mesh, self._jobs[0][1].mesh)
        assert location is not None
        if not location.rank_set.knows((self._specs, self._limit)):
            self._plans(None)

    def run(self, name: str | None, error: Exception | None) -> list[Array | None]:
        """Return the new blocks. Collective over the rank set.

        *error* is one that this rank may see alone. If there is one, no out is written to, and ranks without it raise
        an error, too.
        """
        tensor, layout, *_ = self._jobs[0]
        operation = named_operation(f"relayout of {len(self._jobs)} tensors", name)
        outs = [None if error is not None else writable_block(out) for _, _, out, _ in self._jobs]
        arguments = [t._block for t, *_ in self._jobs], outs
        key = self._specs, self._limit
        blocks = _RELAYOUT_MANY(operation, (tensor.mesh, layout.mesh), key, (self,), arguments, error=error)
        assert blocks is not None
        return blocks

    def text(self) -> str:
        """Return the text that the ranks compare."""
        texts: dict[Hashable, str] = {}
        for spec in self._specs:
            if spec not in texts:
                source, target, shape, dtype, has_out, key = spec
                call = "relayout" if key is None else f"relayout {key!r}"
                text = relayout_text((call, shape, dtype, source, target, self._limit, None))
                texts[spec] = text + " into out" * has_out
        return "; ".join(texts[spec] for spec in self._specs)

    def build(self, location: Location) -> MoveAll:
        """Return the function that makes the new blocks. To call it is Collective over the rank set."""
        # Blocks of outs do not lie in one buffer, so each moves by itself.
        separate_numbers = {number for number, (*_, has_out, _) in enumerate(self._specs) if has_out}
        run = _prepare_many(self._plans(location.rank_set.machine), location, self._limit, separate_numbers)
        if not agreement.checks_every_call():
            return run
        checks = [
            comparing_replicas(_ignore, "relayout", shape, source, location) for source, _, shape, *_ in self._specs
        ]

        def compare_and_run(blocks: list[Array | None], outs: list[Array | None]) -> list[Array | None]:
            for check, block in zip(checks, blocks, strict=True):
                check(block)
            return run(blocks, outs)

        return compare_and_run

    def _plans(self, machine: Machine | None) -> list[Plan]:
        plan_of: dict[Hashable, Plan] = {}  # of thousands of tensors, many have one shape, dtype and layouts
        plans = []
        for source, target, shape, dtype, *_ in self._specs:
            key = (
                source,
                target,
                id(source.mesh),
                id(target.mesh),
                shape,
                dtype,
            )  # equal meshes may belong to different worlds
            if key not in plan_of:
                plan_of[key] = plan_relayout(shape, dtype, source, target, self._limit, machine)
            plans.append(plan_of[key])
        return plans


def _ignore(block: Array | None) -> None:
    """Do nothing with *block*."""


_RELAYOUT_MANY = Collective[list[Array | None]](_Batch.text, _Batch.build)


def _prepare_many(plans: Sequence[Plan], location: Location, limit: int | None, separate_numbers: Set[int]) -> MoveAll:
    """Return a function that makes the new blocks of *plans*. To call it is Collective over the rank set.

    The plans together keep to *limit* bytes of scratch. Plans with *separate_numbers* share no exchange.
    """
    shared_exchanges = _shared_exchanges(plans, limit, separate_numbers)
    shared_moves = [(numbers, prepare_together([plans[n] for n in numbers], location)) for numbers in shared_exchanges]
    single_numbers = sorted({*range(len(plans))}.difference(*shared_exchanges))
    single_moves = [(number, prepare(plans[number], location)) for number in single_numbers]

    def run(blocks: list[Array | None], outs: list[Array | None]) -> list[Array | None]:
        results: list[Array | None] = list(outs)
        for numbers, move_together in shared_moves:
            for number, block in zip(numbers, move_together([blocks[n] for n in numbers]), strict=True):
                results[number] = block
        for number, move in single_moves:
            results[number] = move(blocks[number], outs[number])
        return results

    return run


def _small_step(plan: Plan) -> tuple[Hashable, int] | None:
    """Return the group of a *plan* of one small step, and the scratch bytes that it needs; None for any other plan."""
    steps = exchanging_steps(plan)
    if len(steps) != 1 or steps[0] is not plan.steps[-1]:
        return None
    (step,) = steps
    if step.rounds > 1 or max_block_bytes(step) > MERGED_UP_TO:
        return None
    # Scratch to pack and unpack: a block for several ranks may be packed for each of them.
    return (step.ranks, step.mesh, step.dims), (step.group_size + 1) * max_block_bytes(step)


def _shared_exchanges(plans: Sequence[Plan], limit: int | None, separate_numbers: Set[int]) -> list[list[int]]:
    """Return the numbers of plans that can share an exchange: one small step each, among the same ranks.

    Plans with *separate_numbers* are left out.
    """
    batches_by_group: dict[Hashable, list[list[int]]] = {}
    free_bytes: dict[Hashable, int] = {}
    scratch_limit = DEFAULT_SCRATCH if limit is None else limit
    steps = {id(plan): _small_step(plan) for plan in {id(plan): plan for plan in plans}.values()}
    for number, plan in enumerate(plans):
        small_step = steps[id(plan)]
        if number in separate_numbers or small_step is None:
            continue
        key, scratch_bytes = small_step
        if key not in batches_by_group or free_bytes[key] < scratch_bytes:
            batches_by_group.setdefault(key, []).append([])
            free_bytes[key] = scratch_limit
        if scratch_bytes <= free_bytes[key]:
            batches_by_group[key][-1].append(number)
            free_bytes[key] -= scratch_bytes
    return [numbers for batches in batches_by_group.values() for numbers in batches if len(numbers) > 1]
