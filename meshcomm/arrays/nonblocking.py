"""Relayouts without waiting: started here, finished when the caller asks."""

import atexit

from meshcomm import _hooks
from meshcomm.arrays.compile import prepare_start
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.out import agree_on_outs, call_text, check_out
from meshcomm.errors import LayoutError, MeshcommError
from meshcomm.layouts.layout import Layout
from meshcomm.plans.plan import Plan, plan_direct
from meshcomm.ranks import abort, watchdog
from meshcomm.ranks.calls import run_agreed
from meshcomm.ranks.meshes import place_between
from meshcomm.ranks.mpi import MPIWorld, is_forked, mpi
from meshcomm.ranks.teams import Place, World
from meshcomm.transport.packed import Started

_on_their_way: dict[int, "RelayoutRequest"] = {}
"""Requests over MPI, which writes to their memory even when nobody knows them any more, nor their world."""


class RelayoutRequest:
    """A relayout on its way. Made by `start_relayout`; `wait` for it before the program ends. Local."""

    def __init__(
        self, what: str, started: Started | None, result: DTensor, source: DTensor, place: Place | None
    ) -> None:
        self._what = what
        self._started = started
        self._result = result
        self._source: DTensor | None = source  # whose block is read until the end
        self._place = place
        if place is not None and started is not None:
            place.team.world.started[id(self)] = self
            if isinstance(place.team.world, MPIWorld):
                _on_their_way[id(self)] = self

    def test(self) -> bool:
        """Return whether the relayout is complete, so that `wait` returns at once. Local.

        With most MPIs messages advance only in calls to MPI: a program that computes for long may test now and then. A
        request that was tested until it was complete need not be waited for.
        """
        if self._started is None or self._started.test():
            self._finish()
            return True
        return False

    def wait(self) -> DTensor:
        """Wait until the relayout is complete, and return its tensor; the same one if called again. Collective.

        Each rank waits for its requests in any order.
        """
        if self._source is not None:
            if self._started is not None and self._place is not None:
                watchdog.begin(f"wait for a {self._what}", self._place.team)
                try:
                    self._started.wait()
                finally:
                    watchdog.end()
            self._finish()
        return self._result

    def _finish(self) -> None:
        self._source = None
        _on_their_way.pop(id(self), None)
        if self._place is not None:
            self._place.team.world.started.pop(id(self), None)

    def __repr__(self) -> str:
        return f"RelayoutRequest({self._what}; {'on its way' if self._source is not None else 'complete'})"


def start_relayout(
    tensor: DTensor, layout: Layout, out: DTensor | None = None, name: str | None = None
) -> RelayoutRequest:
    """Begin to divide *tensor* as *layout* says, and return at once with a request. Collective over both meshes.

    It moves in one direct exchange, with buffers of its own for what has to be packed: no bound on scratch applies.
    Any number may be on their way; all ranks start them in the same order, and each may wait for them in any. Until it
    is complete, the block of *tensor* must not be written to, and that of *out* neither read nor written. A request
    that nobody waits for ends the job with an error when the program ends. ``LayoutError`` if *tensor* is a plain
    array or a list; other errors are those of `relayout`. Source: MPI_Ialltoallv.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    ...     request = mc.start_relayout(mc.distribute(np.arange(6).reshape(3, 2), rows), columns)
    ...     return request.wait().local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[0], [2], [4]], [[1], [3], [5]]]
    """
    tensor = unwrapped(tensor)
    if not isinstance(tensor, DTensor):
        raise LayoutError(f"start_relayout takes a DTensor, not {type(tensor).__name__}")
    if not isinstance(layout, Layout):
        raise LayoutError(f"a relayout goes to a Layout, not {type(layout).__name__} ({layout!r})")
    source, shape, dtype = tensor.layout, tensor.shape, tensor.dtype
    place = place_between(source.mesh, layout.mesh)
    what = f"relayout of {shape} {dtype} from {source.sharding_specs} to {layout.sharding_specs}"
    plan: Plan = plan_direct(shape, dtype, source, layout)
    if place is None:
        if out is not None:
            check_out(out, tensor, layout)
        result = DTensor(None, plan.target, shape, dtype) if out is None else out
        return RelayoutRequest(what, None, result, tensor, None)
    watchdog.begin(name or "start_relayout", place.team)
    try:
        if out is not None:
            agree_on_outs([(tensor, out, layout)], place)
        started, block = run_agreed(
            place,
            ("start", source, layout, shape, dtype),
            lambda: call_text("start_relayout", tensor, layout),
            lambda: prepare_start(plan_direct(shape, dtype, source, layout, place.team.machine), place),
            tensor.local,
            None if out is None else out.local,
        )
    finally:
        watchdog.end()
    result = DTensor(block, plan.target, shape, dtype) if out is None else out
    return RelayoutRequest(what, started, result, tensor, place)


@_hooks.provides("check_started")
def check_all_finished(world: World) -> None:
    """Complete what was started in *world* and raise ``MeshcommError`` if nobody waited for it. Collective."""
    left = list(world.started.values())
    for request in left:
        request.wait()
    if left:
        raise MeshcommError(_dropped(left))


def _dropped(left: list[RelayoutRequest]) -> str:
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    return f"start_relayout was never waited for: {left[0]._what}{more}. Call wait() on each request"


@atexit.register
def _check_at_exit() -> None:
    left = list(_on_their_way.values())
    if not left or is_forked():
        return
    if not mpi().Is_finalized():
        for request in left:
            request.wait()
    abort.end_job(_dropped(left))
