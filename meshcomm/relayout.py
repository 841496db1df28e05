"""relayout: tensors from any layouts to any others."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from meshcomm import _late, batch, guard
from meshcomm.collectives import Program, as_array, is_traced, untraced
from meshcomm.context import place_between, place_in
from meshcomm.dtensor import DTensor, distribute, place_text, unwrapped
from meshcomm.errors import DTypeError, LayoutError, MeshcommError, MeshError, ShapeError
from meshcomm.exchange import as_bytes, forget_scratch
from meshcomm.execute import agreed_program, known_program, prepare, run_agreed
from meshcomm.groups import Place
from meshcomm.layout import Layout
from meshcomm.machine import Machine
from meshcomm.mesh import Mesh
from meshcomm.plan import Plan, forget_plans, plan_relayout, ranks_between
from meshcomm.steps import Ranks

Tensor = DTensor | ArrayLike

READ_ONLY = "out cannot be written to: its block is read-only"


@overload
def relayout(
    tensor: DTensor,
    layout: Layout,
    out: DTensor | None = None,
    max_scratch_bytes: int | None = None,
    name: str | None = None,
) -> DTensor: ...


@overload
def relayout(
    tensor: Any, layout: Any, out: Any = None, max_scratch_bytes: int | None = None, name: str | None = None
) -> Any: ...


def relayout(
    tensor: Any,
    layout: Any,
    out: Any = None,
    max_scratch_bytes: int | None = None,
    name: str | None = None,
) -> Any:
    """Return *tensor* divided as *layout* says. Collective over the meshes of both.

    The same global array, in new blocks that share no memory with the old ones, also if the layouts are equal. The
    layout may be on another mesh, over other ranks; a rank outside of that mesh gets a tensor without a block. MATCH
    in *layout* keeps what the tensor has on that axis. A plain array counts as replicated: every rank passes the same.

    *out* is a tensor of the same shape and dtype in *layout*, to be overwritten and returned. Beyond its old and its
    new block a rank uses at most *max_scratch_bytes*, by default 32 MiB (or the least possible, if that is more).
    *name* stands in messages about a call that waits. *tensor* may also be a list, tuple or dict of tensors, in the
    same order on all ranks; *layout* is then one for all, a list or dict of as many, or a `LayoutMap`, *out* is a list
    or dict of tensors, and the bound is one for the whole call. What is small shares an exchange.

    ``LayoutError`` if the layout has another rank than the tensor, or if *out* is in another layout, read-only, or in
    the memory of *tensor*; ``ShapeError`` if *out* has another shape, or the bound cannot be kept; ``DTypeError`` if
    *out* has another dtype; ``MeshError`` if the meshes are in different worlds. Source:
    tf.experimental.dtensor.relayout.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    ...     t = mc.distribute(np.arange(6).reshape(3, 2), rows)
    ...     return mc.relayout(t, columns).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[0], [2], [4]], [[1], [3], [5]]]
    """
    if not isinstance(tensor, DTensor) and _are_many(tensor, layout):
        return _many(tensor, layout, out, max_scratch_bytes, name)
    if not isinstance(layout, Layout):
        raise LayoutError(f"a relayout goes to a Layout, not {type(layout).__name__} ({layout!r})")
    if not isinstance(tensor, DTensor):
        if is_traced(tensor):
            return _traced(tensor, layout, out, max_scratch_bytes, name)
        tensor = unwrapped(tensor)
    if not isinstance(tensor, DTensor):
        return _distributed(tensor, layout, out)
    source, shape, dtype = tensor.layout, tensor.shape, tensor.dtype
    place = place_between(source.mesh, layout.mesh)
    if place is None:
        if out is not None:
            check_out(out, tensor, layout)
        plan = plan_relayout(shape, dtype, source, layout, max_scratch_bytes)  # checked alike
        return DTensor(None, plan.target, shape, dtype) if out is None else out
    guard.begin(name or "relayout", place.team)
    try:
        if out is not None:
            agree_on_outs([(tensor, out, layout)], place)
        program = known_program(place.team, (source, layout, shape, dtype, max_scratch_bytes), True)
        if program is None:
            program = _agreed(tensor, layout, max_scratch_bytes, place)
        block = program.run(tensor.local, None if out is None else out.local)
    finally:
        guard.end()
    if out is not None:
        return out
    return DTensor(block, layout if layout.match_axis is None else layout.matched(source), shape, dtype)


def _agreed(tensor: DTensor, layout: Layout, bound: int | None, place: Place) -> Program:
    """Return the program of a relayout that is new. Collective over the team."""
    source, shape, dtype, team = tensor.layout, tensor.shape, tensor.dtype, place.team
    return agreed_program(
        team,
        (source, layout, shape, dtype, bound),
        lambda: call_text("relayout", tensor, layout) + _bound_text(bound),
        lambda: prepare(plan_relayout(shape, dtype, source, layout, bound, team.machine), place),
    )


def relayout_like(
    tensor: Tensor,
    layout_tensor: DTensor,
    out: DTensor | None = None,
    max_scratch_bytes: int | None = None,
    name: str | None = None,
) -> DTensor:
    """Return *tensor* in the layout of *layout_tensor*. Collective over the meshes of both.

    Shape and dtype of *layout_tensor* do not matter, only its rank. The rest is as for `relayout`. ``LayoutError`` if
    the ranks differ or *layout_tensor* is no DTensor. Source: tf.experimental.dtensor.relayout_like.

    >>> import meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     x = mc.zeros((4, 4), "f4", mc.Layout(["x", mc.UNSHARDED], mesh))
    ...     z = mc.ones((4, 4), "f8", mc.Layout.replicated(mesh, 2))
    ...     return mc.relayout_like(z, x).local.shape
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [(2, 4), (2, 4)]
    """
    layout_tensor = unwrapped(untraced(layout_tensor))
    if not isinstance(layout_tensor, DTensor):
        raise LayoutError(f"layout_tensor must be a DTensor, not {type(layout_tensor).__name__}")
    result: DTensor = relayout(tensor, layout_tensor.layout, out, max_scratch_bytes, name or "relayout_like")
    return result


def machine_of(mesh: Mesh) -> Machine:
    """Return what `relayout` plans by on *mesh*: costs, and which ranks share a node. Collective over the mesh.

    Its ranks agree on it when they first communicate: the nodes are those that MPI reports, the constants those that
    the first rank finds in the file named by ``MESHCOMM_MACHINE``, else defaults. Between two meshes the ranks of both
    agree alike. A rank outside of the mesh gets defaults. ``MeshError`` on all ranks if the file cannot be read.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     world.run(lambda: mc.machine_of(mesh).one_node)
    [True, True]
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(f"a machine is that of a Mesh, not of {mesh!r}")
    place = place_in(mesh)
    return Machine() if place is None else place.team.machine


def drop_plans(mesh: Mesh) -> None:
    """Drop the plans that are kept for the ranks of *mesh*, and all that was prepared for them. Collective.

    Plans are kept for calls that come again, up to 1,024 for each set of ranks, which is that of both meshes if a
    relayout is between two. A call that comes again after this is planned and agreed on anew. Scratch memory stays.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     world.run(lambda: mc.drop_plans(mesh))
    [None, None]
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(f"plans are kept for a Mesh, not for {mesh!r}")
    place = place_in(mesh)
    if place is not None:
        guard.begin("drop_plans", place.team)
        try:
            guard.agree(place.team, "drop_plans")
            place.team.programs.clear()
        finally:
            guard.end()
    forget_plans()
    forget_scratch()


@_late.provides("execute_plan")
def _execute(plan: Plan, tensor: Any, out: Any) -> DTensor:
    planned = plan.shape, plan.dtype, plan.source
    if not isinstance(tensor, DTensor) or (tensor.shape, tensor.dtype, tensor.layout) != planned:
        raise LayoutError(
            f"this plan is for a DTensor of {plan.shape} {plan.dtype} in {plan.source.sharding_specs}, "
            f"not for {tensor!r}"
        )
    place = place_between(tensor.layout.mesh, plan.target.mesh)
    if place is None:
        if out is not None:
            check_out(out, tensor, plan.target)
        return DTensor(None, plan.target, plan.shape, plan.dtype) if out is None else out
    guard.begin("plan.execute", place.team)
    try:
        if out is not None:
            agree_on_outs([(tensor, out, plan.target)], place)
        program = known_program(place.team, plan, True) or agreed_program(
            place.team,
            plan,
            lambda: f"{call_text('plan.execute', tensor, plan.target)} by {plan.steps}",
            lambda: prepare(plan, place),
        )
        block = program.run(tensor.local, None if out is None else out.local)
    finally:
        guard.end()
    return DTensor(block, plan.target, plan.shape, plan.dtype) if out is None else out


def _distributed(array: Any, layout: Layout, out: DTensor | None) -> DTensor:
    """Return a plain array, the same on all ranks, in *layout*."""
    array = as_array(array)
    tensor = distribute(array, layout.matched(Layout.replicated(layout.mesh, array.ndim)))
    if out is None:
        return tensor
    check_out(out, tensor, tensor.layout)
    if out.local is not None and tensor.local is not None:
        if not out.local.flags.writeable:
            raise LayoutError(READ_ONLY)
        as_bytes(out.local)[:] = as_bytes(tensor.local)  # bit for bit, padding too
    return out


def check_out(out: Any, tensor: DTensor, layout: Layout) -> None:
    """Raise unless *out* is what a relayout of *tensor* to *layout* gives; all ranks can see that alike. Local."""
    if not isinstance(out, DTensor):
        raise LayoutError(f"out must be a DTensor, not {type(out).__name__}")
    if out.shape != tensor.shape:
        raise ShapeError(f"out has shape {out.shape}, but the tensor has {tensor.shape}")
    if out.dtype != tensor.dtype:
        raise DTypeError(f"out has dtype {out.dtype}, but the tensor has {tensor.dtype}")
    wanted = layout if layout.match_axis is None else layout.matched(tensor.layout)
    if out.layout is not wanted and (out.layout != wanted or out.mesh.world is not wanted.mesh.world):
        raise LayoutError(f"out is {_where(out.layout)}, but the relayout goes to {_where(wanted)}")


def _where(layout: Layout) -> str:
    return f"{layout.sharding_specs} on the {layout.mesh}"


def agree_on_outs(moves: list[tuple[DTensor, Any, Layout]], place: Place) -> None:
    """Raise on all ranks unless each can write its blocks of the second while it reads the first. Collective.

    *moves* are tensors, what their relayouts are to overwrite, and where they go. What is wrong one rank may see
    alone; when all pairs were found good before, nobody tells the others.
    """
    error: Exception | None = None
    try:
        for tensor, out, layout in moves:
            check_out(out, tensor, layout)
    except MeshcommError as problem:
        error = problem
    if error is None:
        if all(out.partner is not None and out.partner() is tensor for tensor, out, _ in moves):
            return
        error = _wrong_with_blocks([tensor for tensor, _, _ in moves], [out for _, out, _ in moves])
    guard.agree(place.team, "; ".join(call_text("out of a relayout", t, layout) for t, _, layout in moves), error)
    for tensor, out, _ in moves:
        object.__setattr__(out, "partner", weakref.ref(tensor))


def _wrong_with_blocks(tensors: list[DTensor], outs: list[DTensor]) -> Exception | None:
    if any(out.local is not None and not out.local.flags.writeable for out in outs):
        return LayoutError(READ_ONLY)
    if _overlap([out.local for out in outs], [tensor.local for tensor in tensors]):
        return LayoutError(
            "out shares memory with a tensor or another out: a relayout reads blocks while it writes others"
        )
    return None


def _overlap(written: list[Any], read: list[Any]) -> bool:
    """Return whether a block that is written shares memory with another one, read or written."""
    blocks = [(block, True) for block in written] + [(block, False) for block in read]
    end_written = end = 0
    for start, stop, writes in sorted(
        (block.__array_interface__["data"][0], block.__array_interface__["data"][0] + block.nbytes, writes)
        for block, writes in blocks
        if block is not None and block.nbytes
    ):
        if start < (end if writes else end_written):
            return True
        end = max(end, stop)
        end_written = max(end_written, stop) if writes else end_written
    return False


def call_text(operation: str, tensor: DTensor, layout: Layout) -> str:
    """Return what the ranks agree on: all that tells one call from another. Local."""
    to = "" if layout.mesh is tensor.mesh else f" on {place_text(layout.mesh)}"
    return (
        f"{operation} of {tensor.shape} {tensor.dtype} from {tensor.layout.sharding_specs} on "
        f"{place_text(tensor.mesh)} to {layout.sharding_specs}{to}"
    )


def _bound_text(bound: int | None) -> str:
    return "" if bound is None else f" within {bound} bytes of scratch"


def _traced(*args: Any) -> DTensor:
    result: DTensor = _late.call("traced", relayout, args)
    return result


# -- many at once -----------------------------------------------------------------------------------------------------


def _are_many(tensors: Any, layouts: Any) -> bool:
    """Return whether these are several tensors: a list of numbers for one layout is one array."""
    if isinstance(tensors, Mapping):
        return True
    if not isinstance(tensors, list | tuple):
        return False
    return not isinstance(layouts, Layout) or any(isinstance(t, DTensor) or is_traced(t) for t in tensors)


def _many(tensors: Any, layouts: Any, out: Any, bound: int | None, name: str | None) -> Any:
    """Return tensors in a list, tuple or mapping like the one given."""
    keys = list(tensors) if isinstance(tensors, Mapping) else list(range(len(tensors)))
    items = [tensors[key] for key in keys]
    to = [_layout_for(layouts, key, keys, item) for key, item in zip(keys, items, strict=True)]
    outs = [None] * len(keys) if out is None else [_item(out, key, keys) for key in keys]
    if any(is_traced(item) for item in items):
        moved = [relayout(*each, bound, name) for each in zip(items, to, outs, strict=True)]
    else:
        moved = _moved_together(items, to, outs, bound, name)
    if isinstance(tensors, Mapping):
        return dict(zip(keys, moved, strict=True))
    return tuple(moved) if isinstance(tensors, tuple) else moved


def _layout_for(layouts: Any, key: Any, keys: list[Any], tensor: Any) -> Layout:
    if isinstance(layouts, Layout):
        return layouts
    if hasattr(layouts, "layout_for"):  # a LayoutMap
        layout = layouts.layout_for(key, np.ndim(untraced(unwrapped(tensor))))
    else:
        layout = _item(layouts, key, keys)
    if not isinstance(layout, Layout):
        raise LayoutError(f"there is no layout for tensor {key!r}: {layout!r}")
    return layout


def _item(items: Any, key: Any, keys: list[Any]) -> Any:
    if isinstance(items, list | tuple) and len(items) != len(keys):
        raise LayoutError(f"{len(keys)} tensors need as many layouts and results, not {len(items)}")
    try:
        return items[key]
    except (KeyError, IndexError, TypeError):
        raise LayoutError(
            f"there is nothing for tensor {key!r} in {type(items).__name__} of layouts or results"
        ) from None


def _moved_together(
    items: list[Any], layouts: list[Layout], outs: list[Any], bound: int | None, name: str | None
) -> list[DTensor]:
    given = [out for out in outs if out is not None]
    if len({id(each) for each in (*given, *items)}) < len(given) + len({id(item) for item in items}):
        raise LayoutError("out may name no tensor twice, and none of the tensors that are read")
    moved: list[Any] = [None] * len(items)
    together: dict[Ranks, list[int]] = {}  # by what all ranks see alike, not by their own places
    found: dict[tuple[int, int], Any] = {}  # most tensors are on few meshes
    for number, (item, layout, out) in enumerate(zip(items, layouts, outs, strict=True)):
        tensor = unwrapped(item)
        if not isinstance(tensor, DTensor):
            moved[number] = _distributed(tensor, layout, out)
            continue
        items[number] = tensor
        meshes = tensor.layout.mesh, layout.mesh
        pair = id(meshes[0]), id(meshes[1])
        if pair not in found:
            found[pair] = None if place_between(*meshes) is None else ranks_between(*meshes)
        if found[pair] is None:
            moved[number] = relayout(tensor, layout, out, bound, name)
            continue
        together.setdefault(found[pair], []).append(number)
    batches = [_Batch([(items[n], layouts[n], outs[n]) for n in numbers], bound) for numbers in together.values()]
    for each in batches:
        each.check()
    for each, numbers in zip(batches, together.values(), strict=True):
        for number, block in zip(numbers, each.run(name), strict=True):
            tensor, layout, out = items[number], layouts[number], outs[number]
            if layout.match_axis is not None:
                layout = layout.matched(tensor.layout)
            moved[number] = out if out is not None else DTensor(block, layout, tensor.shape, tensor.dtype)
    return moved


class _Batch:
    """Tensors that move together, among the same ranks."""

    def __init__(self, moves: list[tuple[DTensor, Layout, Any]], bound: int | None) -> None:
        place = place_between(moves[0][0].mesh, moves[0][1].mesh)
        assert place is not None
        self._place, self._moves, self._bound = place, moves, bound
        self._specs = tuple([(t.layout, layout, t.shape, t.dtype) for t, layout, _ in moves])

    def check(self) -> None:
        """Raise what planning would, unless it was planned before. Local.

        Before any batch moves: a rank that takes part in one of them only sees what is wrong with the others at once.
        """
        if self._place.team.programs.get((self._specs, self._bound)) is None:
            for source, layout, shape, dtype in self._specs:
                plan_relayout(shape, dtype, source, layout, self._bound)

    def run(self, name: str | None) -> Any:
        """Return the new blocks. Collective over the team."""
        place, specs, bound = self._place, self._specs, self._bound

        def call() -> str:
            return "; ".join(call_text("relayout", t, layout) for t, layout, _ in self._moves) + _bound_text(bound)

        def build() -> Callable[..., Any]:
            plans = [plan_relayout(shape, dtype, a, b, bound, place.team.machine) for a, b, shape, dtype in specs]
            return batch.prepare_many(plans, place, bound)

        guard.begin(name or f"relayout of {len(self._moves)} tensors", place.team)
        try:
            agree_on_outs([(tensor, out, layout) for tensor, layout, out in self._moves if out is not None], place)
            outs = [None if out is None else out.local for _, _, out in self._moves]
            return run_agreed(place, (specs, bound), call, build, [t.local for t, _, _ in self._moves], outs)
        finally:
            guard.end()
