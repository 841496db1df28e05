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
from meshcomm.core.arrays.compile import exchanging_steps, most_bytes, prepare, prepare_together
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.moving import relayout_text
from meshcomm.core.arrays.out import distribute_into, wrong_outs
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
from meshcomm.core.arrays.views import at_once, copy_block_into
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
"""From blocks to new blocks, written into those of the second list where it has some."""

RelayoutOne: TypeAlias = Callable[..., DTensor]
"""The relayout of one tensor; it may go through autograd."""

RelayoutJob: TypeAlias = tuple[DTensor, Layout, DTensor | None, Hashable]
"""A tensor, the layout that it goes to, the tensor that is overwritten, if one is given, and its `_shared_key`."""


@runtime_checkable
class FindsLayouts(Protocol):
    """Finds a layout by the name of a tensor, as a `LayoutMap` does."""

    def layout_for(self, name: Value, rank: int, /) -> object:
        """Return the layout of the tensor *name*, which has this number of axes; None if there is none."""


def say_unused(rules: FindsLayouts, names: Sequence[str], *, strict: bool, warns: bool) -> None:
    """Warn of *rules* that match none of the *names*, if this rank *warns*; if *strict*, raise ``LayoutError``."""
    report = getattr(rules, "report", None)  # a LayoutMap's
    unused = report(names).unused if report is not None and (strict or warns) else ()
    if unused:
        text = (
            f"no name matches {counted(len(unused), 'rule')} of the LayoutMap: {quote(list(unused))}"
            f"{suggestion(unused[0], names)}; the names are {quote(list(names))}"
        )
        if strict:
            raise LayoutError(text)
        warn(text)


def are_many(tensors: object, layouts: object) -> bool:
    """Return whether these are several tensors: a list of numbers for one layout is one array."""
    if not isinstance(tensors, list | tuple):
        return isinstance(tensors, Mapping) or holds_variables(tensors)
    return not isinstance(layouts, Layout) or not is_one_array(tensors, allow_arrays=True)


def relayout_many(
    one: RelayoutOne, tensors: object, layouts: object, out: object, *, limit: int | None, name: str | None
) -> object:
    """Return the new tensors in a tree of the form of *tensors*. Collective over the meshes.

    Parameters
    ----------
    one: the relayout of one tensor
    tensors: a tree of DTensors and plain arrays
    layouts: one layout, or a tree or `LayoutMap` of layouts
    out: a tree of tensors to overwrite, or None
    limit: bytes of scratch for the whole call
    name: name of the call in messages
    """
    leaves = _TreeLeaves(layouts, out)
    node = node_of(tensors, leaves.leaf, leaves.held)
    jobs = leaves.jobs
    if leaves.has_traced:
        moved = [one(t, layout, name, out=out, max_scratch_bytes=limit) for t, layout, out, _ in jobs]
    else:
        moved = _moved_together(one, jobs, leaves.paths, limit, name)
    return rebuild(node, moved.__getitem__)


class _TreeLeaves:
    """The leaves of a tree of tensors, and what trees of layouts and results have for them."""

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

    def held(self, tree: object, path: TreePath) -> Children | None:
        """Return what is held at *path*, if that is no array; ``LayoutError`` if other trees hold another number."""
        children = children_of_array_tree(tree, path) if path else children_of(tree)
        if children is None:
            return None
        entries = list(children[1])
        for tree_of_options in (self._layouts if self._rules is None else None, self._out):
            items = _item_at(tree_of_options, path)
            if isinstance(items, list | tuple) and len(items) != len(entries):
                where = f" at {_label(path)!r}" if path else ""
                raise LayoutError(
                    f"{counted(len(entries), 'tensor')}{where} need as many layouts and results, not {len(items)}"
                )
        return children[0], entries

    def leaf(self, path: TreePath, item: Value) -> Node:
        """Note the tensor at *path*, and return its node; ``LayoutError`` if it has no layout, or a wrong result."""
        if type(item) is not DTensor:
            if is_traced(item):
                self.has_traced = True
            else:
                item = unwrapped(item)
        layout: object = self._layouts
        if self._rules is not None:
            by = path[0] if len(path) == 1 and type(path[0]) is not ListIndex else name_of(path)
            value = untraced(item)
            layout = self._rules.layout_for(by, value.ndim if isinstance(value, DTensor) else np.ndim(value))
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
    """Return what a tree of layouts or results has at *path*. A layout, or None, is for all that is below it."""
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
    """Return what messages call the tensor at *path*."""
    return path[0] if len(path) == 1 else ".".join(map(str, path))


def _shared_key(path: TreePath) -> Hashable:
    """Return *path* as all ranks have it, by which they notice that they have another order.

    It is None in a flat list, and where a key is an object that differs from rank to rank.
    """
    if len(path) == 1:
        return None if type(path[0]) is ListIndex else _comparable(path[0])
    keys = [_comparable(key) for key in path]
    return None if None in keys else ".".join(map(str, keys))


def _comparable(key: Hashable) -> Hashable:
    """Return a *key* as all ranks have it, by which they notice that they have another order: None for an object.

    Keys that are equal, as ``"w"`` and ``np.str_("w")``, are so here, too.
    """
    if type(key) is str or type(key) is int:
        return key
    if isinstance(key, tuple):
        return tuple(map(_comparable, key))
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


def _moved_together(
    one: RelayoutOne,
    jobs: Sequence[tuple[object, Layout, DTensor | None, Hashable]],
    paths: Sequence[TreePath],
    limit: int | None,
    name: str | None,
) -> list[DTensor]:
    """Return the new tensors; those of the same ranks move in one batch. Collective over the meshes."""
    outs = [out for _, _, out, _ in jobs if out is not None]
    refresh([tensor for tensor, *_ in jobs])
    read = {id(item) for item, *_ in jobs}
    wrong: Exception | None = None  # what this rank has to raise, once all ranks that it communicates with know of it
    if len({*map(id, outs), *read}) < len(outs) + len(read):
        wrong = LayoutError("out may name no tensor twice, and none of the tensors that are read")
    wrong = wrong or wrong_outs([(t, out, to) for t, to, out, _ in jobs if out is not None and isinstance(t, DTensor)])
    moved: dict[int, DTensor] = {}
    together: dict[Ranks, list[tuple[int, RelayoutJob]]] = {}  # by ranks, which all ranks see alike
    ranks: dict[tuple[int, int], Ranks | None] = {}  # of each pair of meshes; None where this rank is outside of both
    for number, (tensor, layout, out, key) in enumerate(jobs):
        if not isinstance(tensor, DTensor):
            try:
                moved[number] = distribute_into(tensor, layout, out, name)
            except Exception as error:
                wrong = wrong or _of_tensor(error, paths[number])
            continue
        meshes = tensor.layout.mesh, layout.mesh
        pair = id(meshes[0]), id(meshes[1])
        if pair not in ranks:
            ranks[pair] = None if location_between(*meshes) is None else ranks_between(*meshes)
        ranks_of_pair = ranks[pair]
        if ranks_of_pair is None:
            moved[number] = one(tensor, layout, name, out=None if wrong else out, max_scratch_bytes=limit)
        else:
            together.setdefault(ranks_of_pair, []).append((number, (tensor, layout, out, key)))
    _move_batches(list(together.values()), moved, wrong, limit, name)
    write_back(outs)
    return [moved[number] for number in range(len(jobs))]


def _of_tensor(error: Exception, path: TreePath) -> Exception:
    """Return *error* with the name of the array that it is about."""
    return type(error)(f"tensor {_label(path)!r}: {error}") if isinstance(error, LayoutError | DTypeError) else error


def _move_batches(
    numbered: list[list[tuple[int, RelayoutJob]]],
    moved: dict[int, DTensor],
    wrong: Exception | None,
    limit: int | None,
    name: str | None,
) -> None:
    """Put the new tensors into *moved*, by their numbers. Collective over the ranks of each batch.

    All batches run even if something is *wrong*: their ranks have to hear of it. Then this raises it.
    """
    batches = [_Batch([job for _, job in jobs], limit) for jobs in numbered]
    for batch in batches:
        batch.check()
    for batch, jobs in zip(batches, numbered, strict=True):
        try:
            blocks = batch.run(name, wrong)
        except Exception as error:
            wrong = wrong or error
            continue
        for (number, job), block in zip(jobs, blocks, strict=True):
            moved[number] = _result_tensor(job, block)
    if wrong is not None:
        raise wrong


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
        self._specs = tuple([(t.layout, to, t.shape, t.dtype, out is not None, key) for t, to, out, key in jobs])

    def check(self) -> None:
        """Raise what planning raises, unless this was planned before.

        Every batch is checked before one moves. A rank may take part in one batch only, and does not see what is wrong
        with the others; so a rank that sees it must not have begun to communicate.
        """
        location = location_between(self._jobs[0][0].mesh, self._jobs[0][1].mesh)
        assert location is not None
        if not location.rank_set.knows((self._specs, self._limit)):
            self._plans(None)

    def run(self, name: str | None, wrong: Exception | None) -> list[Array | None]:
        """Return the new blocks. Collective over the rank set.

        If something is *wrong*, which this rank may see alone, no out is written to, and ranks that see nothing wrong
        raise an error.
        """
        tensor, layout, *_ = self._jobs[0]
        operation = named_operation(f"relayout of {len(self._jobs)} tensors", name)
        outs = [None if wrong is not None else at_once(out) for _, _, out, _ in self._jobs]
        arguments = [t._block for t, *_ in self._jobs], outs
        key = self._specs, self._limit
        blocks = _TOGETHER(operation, (tensor.mesh, layout.mesh), key, (self,), arguments, error=wrong)
        assert blocks is not None
        return blocks

    def text(self) -> str:
        """Return what the ranks compare."""
        texts: dict[Hashable, str] = {}
        for spec in self._specs:
            if spec not in texts:
                source, target, shape, dtype, has_out, key = spec
                call = "relayout" if key is None else f"relayout {key!r}"
                text = relayout_text((call, shape, dtype, source, target, self._limit, None))
                texts[spec] = text + " into out" * has_out
        return "; ".join(texts[spec] for spec in self._specs)

    def build(self, location: Location) -> MoveAll:
        """Return what makes the new blocks. To call it is Collective over the rank set."""
        # What is written to outs does not lie in one buffer, and moves by itself.
        alone = {number for number, (*_, has_out, _) in enumerate(self._specs) if has_out}
        run = _prepare_many(self._plans(location.rank_set.machine), location, self._limit, alone)
        if not agreement.checks_every_call():
            return run
        checks = [
            comparing_replicas(_ignore, "relayout", shape, source, location) for source, _, shape, *_ in self._specs
        ]

        def compared(blocks: list[Array | None], outs: list[Array | None]) -> list[Array | None]:
            for check, block in zip(checks, blocks, strict=True):
                check(block)
            return run(blocks, outs)

        return compared

    def _plans(self, machine: Machine | None) -> list[Plan]:
        plan_of: dict[Hashable, Plan] = {}  # of thousands of tensors, many have one shape, dtype and layouts
        plans = []
        for a, b, shape, dtype, *_ in self._specs:
            key = a, b, id(a.mesh), id(b.mesh), shape, dtype  # equal meshes may belong to different worlds
            if key not in plan_of:
                plan_of[key] = plan_relayout(shape, dtype, a, b, self._limit, machine)
            plans.append(plan_of[key])
        return plans


def _ignore(block: Array | None) -> None:
    """Do nothing with *block*."""


_TOGETHER = Collective[list[Array | None]](_Batch.text, _Batch.build)


def _prepare_many(plans: Sequence[Plan], location: Location, limit: int | None, alone: Set[int]) -> MoveAll:
    """Return a function that makes the new blocks of *plans*. To call it is Collective over the rank set.

    The plans together keep to *limit* bytes of scratch. Those of the numbers *alone* share no exchange.
    """
    groups = _groups_alike(plans, limit, alone)
    merged = [(numbers, prepare_together([plans[n] for n in numbers], location)) for numbers in groups]
    one_by_one = sorted({*range(len(plans))}.difference(*groups))
    moves = [(number, prepare(plans[number], location)) for number in one_by_one]

    def run(blocks: list[Array | None], outs: list[Array | None]) -> list[Array | None]:
        results: list[Array | None] = list(outs)
        for numbers, together in merged:
            for number, block in zip(numbers, together([blocks[n] for n in numbers]), strict=True):
                results[number] = block
        for number, move in moves:
            results[number] = move(blocks[number], outs[number])
        return results

    return run


def _small_step(plan: Plan) -> tuple[Hashable, int] | None:
    """Return the group of a *plan* of one small step, and the scratch that this needs; None for any other plan."""
    steps = exchanging_steps(plan)
    if len(steps) != 1 or steps[0] is not plan.steps[-1]:
        return None
    (step,) = steps
    if step.rounds > 1 or most_bytes(step) > MERGED_UP_TO:
        return None
    # Packed and unpacked; what goes to several ranks may be packed for each of them.
    return (step.ranks, step.mesh, step.dims), (step.group_size + 1) * most_bytes(step)


def _groups_alike(plans: Sequence[Plan], limit: int | None, alone: Set[int]) -> list[list[int]]:
    """Return the numbers of plans that can share an exchange: one small step each, among the same ranks.

    Those of the numbers *alone* do not.
    """
    groups: dict[Hashable, list[list[int]]] = {}
    free: dict[Hashable, int] = {}
    scratch = DEFAULT_SCRATCH if limit is None else limit
    steps = {id(plan): _small_step(plan) for plan in {id(plan): plan for plan in plans}.values()}
    for number, plan in enumerate(plans):
        small = steps[id(plan)]
        if number in alone or small is None:
            continue
        key, needed = small
        if key not in groups or free[key] < needed:
            groups.setdefault(key, []).append([])
            free[key] = scratch
        if needed <= free[key]:
            groups[key][-1].append(number)
            free[key] -= needed
    return [numbers for batches in groups.values() for numbers in batches if len(numbers) > 1]
