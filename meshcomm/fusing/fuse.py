"""`fuse`: elementwise operations that go over their operands once."""

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._tracing import Value, is_traced
from meshcomm.core._types import Shape
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.fusing.deferred import operand
from meshcomm.fusing.evaluate import evaluated
from meshcomm.fusing.jobs import Job, Waiting, computed, jobs_for, tick, waiting_in
from meshcomm.fusing.lines import Origin
from meshcomm.fusing.programs import Program, compiled
from meshcomm.fusing.reads import Reads, reads_of

FUSED_FROM = 2**15
"""Elements of a block. Up to this size a fused function makes its operations one by one, each for whole blocks: these
are in the caches anyway. Measured with eight operations on float64: 2**15 take 1.2 times as long by pieces, 2**18 as
long, 2**20 0.6 times."""

FUSED_PLANS = 64
"""Kinds of operands for which a fused function keeps what it computes. A compromise: programs use few."""

P = ParamSpec("P")
R = TypeVar("R")


def fuse(function: Callable[P, R]) -> Callable[P, R]:
    """Return *function* as one that makes its elementwise operations together, in pieces that stay in the cache.

    NumPy's ufuncs make each piece, so values are NumPy's bit for bit; sums add up in another order. It takes tensors,
    plain arrays, and both. All ranks of the mesh make the call, as they would make that of *function*.

    *function* uses operators, ufuncs, and functions such as ``numpy.where`` and ``astype``. Reductions, slices and a
    few others compute their operand first. The rest is a ``TypeError`` that names the line: branches on elements,
    assignments, ``out=``, functions that are not elementwise. If *function* reads no more than numbers and functions,
    it runs again only for operands of other shapes, dtypes or layouts, or when what it reads is bound anew.

    >>> import numpy as np, meshcomm as mc
    >>> @mc.fuse
    ... def distance(x, y):
    ...     return np.sqrt(x * x + y * y)
    >>> distance(np.array([3.0, 5.0]), np.array([4.0, 12.0]))
    array([ 5., 13.])
    >>> def program():
    ...     t = mc.distribute(np.arange(3.0), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return distance(t, t + 1).local.round(1).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[1.0, 2.2], [3.6]]
    """
    if not callable(function):
        raise TypeError(f"fuse takes a function, not {quote(function)}")
    small: set[object] = set()  # signatures for which the function itself is the fastest way
    plans: dict[object, Plan | None] = {}

    @refusable
    @wraps(function)
    def fused(*args: P.args, **named: P.kwargs) -> R:
        given = [*map(unwrapped, args), *map(unwrapped, named.values())]
        signature = _signature(given, tuple(named))
        if signature in small:
            return function(*args, **named)
        plan = plans.get(signature)
        if plan is not None and plan.reads.same():
            return plan.run(given)  # type: ignore[no-any-return]
        if any(isinstance(x, Waiting) or is_traced(x) for x in given):  # a fused function calls this, or autograd
            return function(*args, **named)
        begun, operands = tick(), [*map(operand, given)]
        options = dict(zip(named, operands[len(args) :], strict=True))
        result: Value = function(*operands[: len(args)], **options)
        jobs = jobs_for(waiting_in(result))
        if signature is not None and len(jobs) == 1 and tick() == begun + 1:  # nothing was computed meanwhile
            if len(small) + len(plans) > FUSED_PLANS:
                small.clear()
                plans.clear()
            if _block_size(jobs[0]) <= FUSED_FROM:
                small.add(signature)
            elif plan is not None or signature not in plans:
                plans[signature] = _plan(function, given, result, jobs[0])
        for job in jobs:
            job.run()
        return computed(result)  # type: ignore[no-any-return]

    return fused


def _block_size(job: Job) -> int:
    """Return how many elements a result has on a device, the same number on all of them."""
    return prod(job.shape if job.layout is None else job.layout.block_shape(job.shape, 0))


class Plan(NamedTuple):
    """What a call computes, to be made again for other operands of the same shapes, dtypes and layouts.

    Parameters
    ----------
    reads: what the function has read: while that is the same, the plan holds
    program, shape, layout, origins: as `evaluated` has them
    leaves: the constants, and None for operands
    operands: for each of these, which argument it is
    results: which results the function returns
    alone: whether it returns one, and no tuple
    """

    reads: Reads
    program: Program
    leaves: list[Value]
    operands: dict[int, int]
    shape: Shape
    layout: Layout | None
    origins: list[Origin]
    results: list[int]
    alone: bool

    def run(self, given: Sequence[Value]) -> Value:
        """Return the results for these arguments. Collective as `evaluated`."""
        leaves, origins = [*self.leaves], self.origins
        for number, argument in self.operands.items():
            leaves[number] = given[argument]
        handling, handler = np.geterr(), np.geterrcall()
        if handling != origins[0].handling or handler is not origins[0].handler:
            origins = [Origin(each.line, handling, handler) for each in origins]
        made = evaluated(self.program, leaves, self.shape, self.layout, origins)
        return made[self.results[0]] if self.alone else tuple(made[number] for number in self.results)


def _plan(function: Callable[..., object], given: Sequence[Value], result: Value, job: Job) -> Plan | None:
    """Return the plan of a call; None if the next call may compute something else.

    Parameters
    ----------
    function, given: what was called, and its arguments
    result: what it returned
    job: computes all values in that
    """
    arrays = [id(x) for x in given if isinstance(x, np.ndarray | DTensor)]
    arguments = {id(x): number for number, x in enumerate(given)}
    operands = {n: arguments.get(id(x), -1) for n, x in enumerate(job.leaves) if isinstance(x, np.ndarray | DTensor)}
    wanted = {id(x): number for number, x in enumerate(job.wanted)}
    results = [wanted.get(id(x), -1) for x in (result if type(result) is tuple else (result,))]
    reads = reads_of(function)
    if reads is None or len(set(arrays)) < len(arrays) or -1 in (*operands.values(), *results):
        return None
    leaves = [None if number in operands else x for number, x in enumerate(job.leaves)]
    alone = type(result) is not tuple
    return Plan(reads, compiled(job.source), leaves, operands, job.shape, job.layout, job.origins, results, alone)


def _signature(given: Sequence[Value], names: tuple[str, ...]) -> tuple[object, ...] | None:
    """Return what tells a call from calls with operands of other kinds; None if that is not known.

    Arrays without axes are numbers, of which the function may have computed others.
    """
    found: list[object] = [names]
    for x in given:
        if type(x) is np.ndarray and x.shape:
            found += x.shape, x.dtype
        elif type(x) is DTensor and x.shape:
            found.append(x._spec)
        elif x is None or type(x) in (bool, int, float, complex, str):
            found += type(x), repr(x)  # 0.0 and -0.0 are equal
        else:
            return None
    return tuple(found)
