"""Relayouts without waiting: begun here, finished when the caller asks."""

import atexit

from meshcomm.arrays.compile import Start, prepare_start
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.out import agree_on_outs, call_text, outside
from meshcomm.errors import LayoutError
from meshcomm.layouts.layout import Layout
from meshcomm.plans.plan import plan_direct
from meshcomm.ranks import abort, watchdog
from meshcomm.ranks.calls import collective, program
from meshcomm.ranks.mpi import is_forked, mpi
from meshcomm.ranks.teams import Location, never_waited_for
from meshcomm.transport.packed import InFlight

_in_flight: dict[int, "RelayoutRequest"] = {}
"""Requests over MPI, which writes to their memory even when nobody knows them any more, nor their world."""


class RelayoutRequest:
    """A relayout that is not complete. Made by `start_relayout`; `wait` for it before the program ends. Local."""

    __slots__ = ("_exchange", "_here", "_result", "_source", "_target")

    def __init__(
        self, exchange: InFlight | None, result: DTensor, source: DTensor, target: Layout, here: Location | None
    ) -> None:
        self._exchange = exchange
        self._result = result
        self._source: DTensor | None = source  # whose block is read until the end
        self._target = target
        self._here = here
        if here is not None and exchange is not None:
            here.team.world.begun(self)
            if here.team.world.guarded:
                _in_flight[id(self)] = self

    def test(self) -> bool:
        """Return whether the relayout is complete, so that `wait` returns at once. Local.

        With most MPIs messages advance only in calls to MPI: a program that computes for long may test now and then. A
        request that was tested until it was complete need not be waited for.
        """
        if self._exchange is None or self._exchange.test():
            self._finish()
            return True
        return False

    def wait(self) -> DTensor:
        """Wait until the relayout is complete, and return its tensor; the same one if called again. Collective.

        Each rank waits for its requests in any order.
        """
        if self._source is not None:
            if self._exchange is not None and self._here is not None:
                with watchdog.waiting("wait for a relayout", self._here.team):
                    self._exchange.wait()
            self._finish()
        return self._result

    def _finish(self) -> None:
        self._source = None
        if self._here is not None and self._exchange is not None:
            _in_flight.pop(id(self), None)
            self._here.team.world.finished(self)

    def __str__(self) -> str:
        t = self._result
        return f"relayout of {t.shape} {t.dtype} to {self._target.sharding_specs}"

    def __repr__(self) -> str:
        return f"RelayoutRequest({self}; {'in flight' if self._source is not None else 'complete'})"


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
    with collective(name or "start_relayout", source.mesh, layout.mesh) as here:
        if here is None:
            result = outside(tensor, out, plan_direct(shape, dtype, source, layout))
            return RelayoutRequest(None, result, tensor, layout, None)
        if out is not None:
            agree_on_outs([(tensor, out, layout)], here)
        key = "start", source, layout, shape, dtype
        start = program(here.team, key, _described, _built, tensor, layout, here)
        exchange, block = start(tensor.local, None if out is None else out.local)
    if out is None:
        out = DTensor(block, layout if layout.match_axis is None else layout.matched(source), shape, dtype)
    return RelayoutRequest(exchange, out, tensor, layout, here)


def _described(tensor: DTensor, layout: Layout, here: Location) -> str:
    return call_text("start_relayout", tensor, layout)


def _built(tensor: DTensor, layout: Layout, here: Location) -> Start:
    return prepare_start(plan_direct(tensor.shape, tensor.dtype, tensor.layout, layout, here.team.machine), here)


@atexit.register
def _check_at_exit() -> None:
    left = list(_in_flight.values())
    if not left or is_forked():
        return
    if not mpi().Is_finalized():
        for request in left:
            request.wait()
    abort.end_job(never_waited_for(left))
