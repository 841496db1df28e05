"""Relayouts of several tensors: small tensors that the same ranks exchange share one exchange."""

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from enum import Enum
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from meshcomm._arguments import counted, quote
from meshcomm._tracing import Value, is_traced, untraced
from meshcomm._tuning import DEFAULT_SCRATCH, MERGED_UP_TO
from meshcomm._types import Array, Ranks
from meshcomm.arrays.compile import exchanging_steps, most_bytes, prepare, prepare_together
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.moving import relayout_text
from meshcomm.arrays.out import distributed, wrong_outs
from meshcomm.errors import LayoutError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.machine import Machine
from meshcomm.layouts.refinement import ranks_between
from meshcomm.plans.plan import Plan, plan_relayout
from meshcomm.ranks.calls import collective, program
from meshcomm.ranks.meshes import location_between
from meshcomm.ranks.teams import Location
from meshcomm.ranks.watch import named

MoveAll: TypeAlias = Callable[[list[Array | None], list[Array | None]], list[Array | None]]
"""From blocks to new blocks, written into those of the second list where it has some."""

One: TypeAlias = Callable[..., DTensor]
"""The relayout of one tensor; it may go through autograd."""

Keys: TypeAlias = Sequence[Hashable]

Job: TypeAlias = tuple[DTensor, Layout, DTensor | None, Hashable]
"""A tensor, the layout that it goes to, the tensor that is overwritten, if one is given, and its `_shared_key`."""


@runtime_checkable
class FindsLayouts(Protocol):
    """Finds a layout by the name of a tensor, as a `LayoutMap` does."""

    def layout_for(self, name: Hashable, rank: int, /) -> object:
        """Return the layout of the tensor *name*, which has this number of axes; None if there is none."""


def are_many(tensors: object, layouts: object) -> bool:
    """Return whether these are several tensors: a list of numbers for one layout is one array."""
    if isinstance(tensors, Mapping):
        return True
    if not isinstance(tensors, list | tuple):
        return False
    return not isinstance(layouts, Layout) or any(isinstance(t, DTensor) or is_traced(t) for t in tensors)


def relayout_many(
    one: One, tensors: object, layouts: object, out: object, *, limit: int | None, name: str | None
) -> object:
    """Return the new tensors in a list, tuple or dict as *tensors* is one. Collective over the meshes.

    Parameters
    ----------
    one: the relayout of one tensor
    tensors: a list, tuple or mapping of DTensors and plain arrays
    layouts: one layout, or a list, mapping or `LayoutMap` of layouts
    out: a list or mapping of tensors to overwrite, or None
    limit: bytes of scratch for the whole call
    name: what messages call it
    """
    assert isinstance(tensors, Mapping | list | tuple)
    keys = list(tensors) if isinstance(tensors, Mapping) else list(range(len(tensors)))
    items = [tensors[key] for key in keys]
    to = [_layout_for(layouts, key, keys, item) for key, item in zip(keys, items, strict=True)]
    outs = [None] * len(keys) if out is None else [_item(out, key, keys) for key in keys]
    shared = [_shared_key(key) for key in keys] if isinstance(tensors, Mapping) else [None] * len(keys)
    jobs = list(zip(items, to, outs, shared, strict=True))
    if any(is_traced(item) for item in items):
        moved = [one(t, layout, name, out=out, max_scratch_bytes=limit) for t, layout, out, _ in jobs]
    else:
        moved = _moved_together(one, jobs, limit, name)
    if isinstance(tensors, Mapping):
        return dict(zip(keys, moved, strict=True))
    return tuple(moved) if isinstance(tensors, tuple) else moved


def _shared_key(key: Hashable) -> Hashable:
    """Return a *key* as all ranks have it, by which they notice that they have another order: None for an object.

    Keys that are equal, as ``"w"`` and ``np.str_("w")``, are so here, too.
    """
    if type(key) is str or type(key) is int:
        return key
    if isinstance(key, tuple):
        return tuple(map(_shared_key, key))
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


def _layout_for(layouts: object, key: Hashable, keys: Keys, tensor: Value) -> Layout:
    if isinstance(layouts, Layout):
        return layouts
    layout: object
    if isinstance(layouts, FindsLayouts):
        layout = layouts.layout_for(key, np.ndim(untraced(unwrapped(tensor))))
    else:
        layout = _item(layouts, key, keys)
    if not isinstance(layout, Layout):
        raise LayoutError(f"there is no layout for tensor {key!r}: {quote(layout)}")
    return layout


def _item(items: Value, key: Hashable, keys: Keys) -> Value:
    """Return what a list or mapping of layouts or results has for *key*."""
    if isinstance(items, list | tuple) and len(items) != len(keys):
        raise LayoutError(f"{counted(len(keys), 'tensor')} need as many layouts and results, not {len(items)}")
    try:
        return items[key]
    except (KeyError, IndexError, TypeError):
        raise LayoutError(
            f"there is nothing for tensor {key!r} in {type(items).__name__} of layouts or results"
        ) from None


def _moved_together(
    one: One, jobs: Sequence[tuple[Value, Layout, DTensor | None, Hashable]], limit: int | None, name: str | None
) -> list[DTensor]:
    """Return the new tensors; those of the same ranks move in one batch. Collective over the meshes."""
    given = [out for _, _, out, _ in jobs if out is not None]
    read = {id(item) for item, *_ in jobs}
    wrong: Exception | None = None  # what this rank has to raise, once all ranks that it communicates with know of it
    if len({*map(id, given), *read}) < len(given) + len(read):
        wrong = LayoutError("out may name no tensor twice, and none of the tensors that are read")
    jobs = [(unwrapped(item), layout, out, key) for item, layout, out, key in jobs]
    wrong = wrong or wrong_outs([(t, out, to) for t, to, out, _ in jobs if out is not None and isinstance(t, DTensor)])
    moved: dict[int, DTensor] = {}
    together: dict[Ranks, list[tuple[int, Job]]] = {}  # by ranks, which all ranks see alike
    ranks: dict[tuple[int, int], Ranks | None] = {}  # of each pair of meshes; None where this rank is outside of both
    for number, (tensor, layout, out, key) in enumerate(jobs):
        if not isinstance(tensor, DTensor):
            try:
                moved[number] = distributed(tensor, layout, out, name)
            except Exception as error:
                wrong = wrong or error
            continue
        meshes = tensor.layout.mesh, layout.mesh
        pair = id(meshes[0]), id(meshes[1])
        if pair not in ranks:
            ranks[pair] = None if location_between(*meshes) is None else ranks_between(*meshes)
        its = ranks[pair]
        if its is None:
            moved[number] = one(tensor, layout, name, out=None if wrong else out, max_scratch_bytes=limit)
        else:
            together.setdefault(its, []).append((number, (tensor, layout, out, key)))
    _move_batches(list(together.values()), moved, wrong, limit, name)
    return [moved[number] for number in range(len(jobs))]


def _move_batches(
    numbered: list[list[tuple[int, Job]]],
    moved: dict[int, DTensor],
    wrong: Exception | None,
    limit: int | None,
    name: str | None,
) -> None:
    """Put the new tensors into *moved*, by their numbers. Collective over the ranks of each batch.

    All batches run even if something is *wrong*: their ranks have to hear of it. Then this raises it.
    """
    batches = [_Batch([job for _, job in found], limit) for found in numbered]
    for each in batches:
        each.check()
    for each, found in zip(batches, numbered, strict=True):
        try:
            blocks = each.run(name, wrong)
        except Exception as error:
            wrong = wrong or error
            continue
        for (number, job), block in zip(found, blocks, strict=True):
            moved[number] = _result(job, block)
    if wrong is not None:
        raise wrong


def _result(job: Job, block: Array | None) -> DTensor:
    tensor, layout, out, _ = job
    if out is not None:
        return out
    if layout.match_axis is not None:
        layout = layout.matched(tensor.layout)
    return DTensor(block, layout, tensor.shape, tensor.dtype)


class _Batch:
    """Tensors that move together, among the same ranks."""

    def __init__(self, jobs: Sequence[Job], limit: int | None) -> None:
        self._jobs, self._limit = jobs, limit
        # Whether an out is given, not whether this rank has its block: all ranks see this alike.
        self._specs = tuple([(t.layout, to, t.shape, t.dtype, out is not None, key) for t, to, out, key in jobs])

    def check(self) -> None:
        """Raise what planning raises, unless this was planned before.

        Every batch is checked before one moves. A rank may take part in one batch only, and does not see what is wrong
        with the others; so a rank that sees it must not have begun to communicate.
        """
        here = location_between(self._jobs[0][0].mesh, self._jobs[0][1].mesh)
        assert here is not None
        if not here.team.knows((self._specs, self._limit)):
            self._plans(None)

    def run(self, name: str | None, wrong: Exception | None) -> list[Array | None]:
        """Return the new blocks. Collective over the team.

        If something is *wrong*, which this rank may see alone, no out is written to, and ranks that see nothing wrong
        raise an error.
        """
        with self._call(name) as here:
            assert here is not None
            key = self._specs, self._limit
            move = program(here.team, key, (self._described, self._built), (), here, wrong)
            outs = [None if out is None or wrong is not None else out.local for _, _, out, _ in self._jobs]
            moved: list[Array | None] = move([t.local for t, *_ in self._jobs], outs)
        return moved

    def _call(self, name: str | None) -> AbstractContextManager[Location | None]:
        tensor, layout, *_ = self._jobs[0]
        return collective(named(f"relayout of {len(self._jobs)} tensors", name), tensor.mesh, layout.mesh)

    def _described(self) -> str:
        calls = []
        for source, target, shape, dtype, has_out, key in self._specs:
            call = "relayout" if key is None else f"relayout {key!r}"
            calls.append(relayout_text(call, shape, dtype, source, target, self._limit) + " into out" * has_out)
        return "; ".join(calls)

    def _built(self, here: Location) -> MoveAll:
        # What is written to outs does not lie in one stretch of memory, and moves by itself.
        alone = {number for number, (*_, given, _) in enumerate(self._specs) if given}
        return _prepare_many(self._plans(here.team.machine), here, self._limit, alone)

    def _plans(self, machine: Machine | None) -> list[Plan]:
        return [plan_relayout(shape, dtype, a, b, self._limit, machine) for a, b, shape, dtype, *_ in self._specs]


def _prepare_many(plans: Sequence[Plan], here: Location, limit: int | None, alone: Set[int]) -> MoveAll:
    """Return a function that makes the new blocks of *plans*. To call it is Collective over the team.

    The plans together keep to *limit* bytes of scratch. Those of the numbers *alone* share no exchange.
    """
    groups = _alike(plans, limit, alone)
    merged = [(numbers, prepare_together([plans[n] for n in numbers], here)) for numbers in groups]
    one_by_one = sorted({*range(len(plans))}.difference(*groups))
    moves = [(number, prepare(plans[number], here)) for number in one_by_one]

    def run(blocks: list[Array | None], outs: list[Array | None]) -> list[Array | None]:
        found: list[Array | None] = list(outs)
        for numbers, together in merged:
            for number, block in zip(numbers, together([blocks[n] for n in numbers]), strict=True):
                found[number] = block
        for number, move in moves:
            found[number] = move(blocks[number], outs[number])
        return found

    return run


def _alike(plans: Sequence[Plan], limit: int | None, alone: Set[int]) -> list[list[int]]:
    """Return the numbers of plans that can share an exchange: one small step each, among the same ranks.

    Those of the numbers *alone* do not.
    """
    groups: dict[Hashable, list[list[int]]] = {}
    free: dict[Hashable, int] = {}
    scratch = DEFAULT_SCRATCH if limit is None else limit
    for number, plan in enumerate(plans):
        steps = exchanging_steps(plan)
        if number in alone or len(steps) != 1 or steps[0] is not plan.steps[-1]:
            continue
        (step,) = steps
        if step.rounds > 1 or most_bytes(step) > MERGED_UP_TO:
            continue
        key = (step.ranks, step.mesh, step.dims)
        # Packed and unpacked; what goes to several ranks may be packed for each of them.
        needed = (step.group_size + 1) * most_bytes(step)
        if key not in groups or free[key] < needed:
            groups.setdefault(key, []).append([])
            free[key] = scratch
        if needed <= free[key]:
            groups[key][-1].append(number)
            free[key] -= needed
    return [numbers for found in groups.values() for numbers in found if len(numbers) > 1]
