"""Relayouts that do not wait: `start_relayout` begins one, and its request completes it."""

import atexit
from collections.abc import Callable

import numpy as np

from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays._storage import refresh, write_back
from meshcomm.core.arrays.compile import prepare_start
from meshcomm.core.arrays.dtensor import DTensor, TensorLike, unwrapped
from meshcomm.core.arrays.moving import RelayoutKey, relayout_text
from meshcomm.core.arrays.out import find_out_error
from meshcomm.core.arrays.replicas import comparing_replicas
from meshcomm.core.arrays.targets import Target, target_of
from meshcomm.core.arrays.views import writable_block
from meshcomm.core.failures import abort, forks
from meshcomm.core.failures.messages import Unfinished, never_waited_for
from meshcomm.core.failures.watch import named_operation, watch
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.copies import opaque
from meshcomm.core.plans.plan import plan_direct
from meshcomm.core.ranks._call_scope import CallScope
from meshcomm.core.ranks.calls import Collective, leave_with
from meshcomm.core.ranks.communicator import Pending
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.core.ranks.mpi import mpi
from meshcomm.core.ranks.rank_sets import Location, RankSet
from meshcomm.errors import LayoutError, MeshError

_requests_over_mpi: dict[int, "Request"] = {}
"""Requests in flight over MPI. MPI writes to their memory even when the program has lost the request and its world."""


class Request:
    """A nonblocking exchange, which may still be in flight."""

    __slots__ = ("_exchange", "_number", "_rank_set", "_unfinished")

    begun_by = "start_relayout"
    """The function that begins the exchange, for messages."""
    operation = "relayout"
    """The kind of the exchange, for messages."""

    def __init__(self, exchange: Pending | None, rank_set: RankSet | None) -> None:
        self._exchange, self._rank_set = exchange, rank_set
        if exchange is not None and rank_set is not None:
            world = rank_set.world
            self._number = -rank_set.calls  # with a minus: it waits for the nonblocking call of this number
            self._unfinished: dict[int, Request] | dict[int, Unfinished]
            self._unfinished = _requests_over_mpi if world.ends_job_on_failure else world.unfinished
            self._unfinished[id(self)] = self

    def test(self) -> bool:
        """Return whether the exchange is complete, so that `wait` returns at once.

        Most MPIs move messages only while the program is in a call of MPI: a program that computes for long may test
        now and then. Between hosts, a thread does so for large messages. After a test that returned True, `wait` is
        not needed.

        >>> import meshcomm as mc
        >>> t = mc.ones(3, int, mc.Layout(["x"], mc.create_mesh([("x", 1)])))
        >>> request = mc.start_relayout(t, [mc.UNSHARDED])
        >>> while not request.test():
        ...     pass  # compute something
        >>> request.wait().local.tolist()
        [1, 1, 1]
        """
        exchange, rank_set = self._exchange, self._rank_set
        if exchange is None or rank_set is None:
            return True
        if rank_set.call_lock.end_reason is not None:  # as `wait` raises by its call scope
            raise MeshError(rank_set.call_lock.end_reason)
        try:
            is_complete = exchange.test()
        except Exception as error:
            rank_set.explain(error)
            raise
        if not is_complete:
            watch.num_polls += 1
            watch.last_polled = f"tests of a {self.operation}", rank_set, self._number, 0.0
            return False
        self._complete()
        return True

    def wait(self) -> object:
        """Wait until the exchange is complete. Collective over its meshes."""
        exchange = self._exchange
        if exchange is not None:
            with CallScope("wait for a " + self.operation, self._rank_set, self._number):
                try:
                    exchange.wait()
                except Exception as error:
                    if self._rank_set is not None:
                        self._rank_set.explain(error)
                    raise
            self._complete()
        return None

    @property
    def is_lost(self) -> bool:
        """Whether the exchange cannot be completed any more, because its ranks make no more calls."""
        return self._rank_set is not None and self._rank_set.call_lock.end_reason is not None

    def _complete(self) -> None:
        self._exchange = None
        watch.progress_count += 1
        del self._unfinished[id(self)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self}; {'complete' if self._exchange is None else 'in flight'})"


class RelayoutRequest(Request):
    """A relayout that may still be in flight, as `start_relayout` returns it. Call `wait` before the program ends."""

    __module__ = "meshcomm"

    __slots__ = ("_block", "_result", "_source")

    def __init__(
        self,
        result: DTensor,
        source: Layout,
        exchange: Pending | None,
        rank_set: RankSet | None,
        block: Array | None = None,
    ) -> None:
        self._result, self._source, self._block = result, source, block
        Request.__init__(self, exchange, rank_set)
        if exchange is None:
            _copy_to_result(result, block)

    def _complete(self) -> None:
        _copy_to_result(self._result, self._block)  # where a result has gaps, the exchange wrote to a temporary block
        self._block = None
        super()._complete()

    def wait(self) -> DTensor:
        """Wait until the relayout is complete, and return its tensor. Collective over the meshes of the relayout.

        Each rank may wait for its requests in any order. The next call returns the same tensor.

        >>> import meshcomm as mc
        >>> def program():
        ...     mesh = mc.create_mesh([("x", 2)])
        ...     request = mc.start_relayout(mc.ones(3, int, mc.Layout(["x"], mesh)), [mc.UNSHARDED])
        ...     return request.wait().local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [[1, 1, 1], [1, 1, 1]]
        """
        if self._exchange is not None:
            Request.wait(self)
        write_back(self._result)
        return self._result

    def __str__(self) -> str:
        t = self._result
        specs = [layout.specs_text for layout in (self._source, t.layout)]
        return f"relayout of {t.shape} {t.dtype} from {' to '.join(specs)}"


@refusable
def start_relayout(
    tensor: TensorLike, layout: Target, name: str | None = None, *, out: DTensor | None = None
) -> RelayoutRequest:
    """Begin a relayout of *tensor* and return a request for its result. Collective over the meshes of both.

    It returns while data move. A call with arguments that are new to these ranks waits first until all have made it.

    The tensor moves in one direct exchange. What has to be packed gets buffers of its own: no scratch limit applies.
    There may be any number of requests in flight. All ranks start them in the same order, and may wait for them in any
    order. Until a request is complete, do not write to the block of *tensor*, and neither read nor write that of
    *out*. If nobody waits for a request, the job ends with an error when the program ends. Source: MPI_Ialltoallv.

    Parameters
    ----------
    tensor: a DTensor, or a variable that holds one
    layout: the layout of the result, or a list of sharding specs on the tensor's own mesh
    name: name of this call in messages while it waits
    out: a tensor of the same shape and dtype in *layout*, to overwrite

    ``LayoutError`` if *tensor* is a plain array or a list. Other errors are those of `relayout`.

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
    if not isinstance(tensor, DTensor):
        tensor = _checked_tensor(tensor)
    if not isinstance(layout, Layout):
        layout = target_of(tensor, layout)
    refresh(tensor)
    source, shape, dtype, local = tensor.layout, tensor.shape, tensor.dtype, tensor._block
    out_error = None if out is None else find_out_error(tensor, out, layout)
    writable_out = None if out_error is not None else out
    # Use the layout of this call: the kept call may have an equal layout on a closed mesh.
    target = layout.matched(source)
    operation = named_operation("start_relayout", name) if name else "start_relayout"
    key: RelayoutKey = "start_relayout", shape, dtype, source, layout, None, None
    arguments = local, writable_out, target, out_error is not None
    request = _START_RELAYOUT(operation, (source.mesh, layout.mesh), key, (key,), arguments, error=out_error)
    if request is not None:
        return request
    return RelayoutRequest(_result_tensor(None, out, target, shape, dtype), source, None, None)


def _copy_to_result(result: DTensor, block: Array | None) -> None:
    if block is not None and result._has_block and block is not result._block:
        np.copyto(opaque(result._block), opaque(block))


def _result_tensor(block: Array | None, out: DTensor | None, layout: Layout, shape: Shape, dtype: DType) -> DTensor:
    return DTensor(block, layout, shape, dtype) if out is None else out


def _checked_tensor(tensor: object) -> DTensor:
    value = unwrapped(tensor)
    if not isinstance(value, DTensor):
        raise LayoutError(f"start_relayout takes a DTensor, not {type(value).__name__}")
    return value


def _build_start(
    relayout_key: RelayoutKey, location: Location
) -> Callable[[Array | None, DTensor | None, Layout, bool], RelayoutRequest]:
    operation, shape, dtype, source, layout, *_ = relayout_key
    start = prepare_start(plan_direct(shape, dtype, source, layout, location.rank_set.machine), location)

    def begin(local: Array | None, out: DTensor | None, target: Layout, complete_now: bool) -> RelayoutRequest:
        try:
            exchange, block = start(local, writable_block(out))
            if complete_now and exchange is not None:
                exchange.wait()
                exchange = None
            return RelayoutRequest(
                _result_tensor(block, out, target, shape, dtype), source, exchange, location.rank_set, block
            )
        except BaseException as error:  # before there is a request
            leave_with(error, location.rank_set)
            raise

    return comparing_replicas(begin, operation, shape, source, location)


def _check_plan(relayout_key: RelayoutKey) -> None:
    _, shape, dtype, source, layout, *_ = relayout_key
    plan_direct(shape, dtype, source, layout)


_START_RELAYOUT = Collective[RelayoutRequest](relayout_text, _build_start, _check_plan)


@atexit.register
def _check_at_exit() -> None:
    pending_requests = [request for request in _requests_over_mpi.values() if not request.is_lost]
    if not pending_requests or forks.is_child:
        return
    if not mpi().Is_finalized():
        for request in pending_requests:
            request.wait()
    abort.end_job(never_waited_for(pending_requests))
