"""Values that wait: from what they are to be made, and how those that are needed are computed together."""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from meshcomm.core._tracing import Value
from meshcomm.core._types import DType, Shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.fusing.evaluate import evaluated
from meshcomm.fusing.functions import Function, Kind
from meshcomm.fusing.lines import Origin, here
from meshcomm.fusing.programs import Source, Step, compiled

_serials, _ticks = count(), count()


class Waiting:
    """An array, a tensor or a total: one that is there, or what an operation will make.

    Parameters
    ----------
    made: the array, tensor or number; None if it waits
    dtype, shape: of the value; the shape of a total is ()
    layout: of a tensor; None for an array
    """

    __slots__ = ("dtype", "function", "inputs", "kinds", "layout", "made", "names", "origin", "serial", "shape")

    function: Function
    """What makes the value: an elementwise function, or a reduction."""
    inputs: tuple[Value, ...]
    """What it takes: values, numbers and other arguments."""
    kinds: tuple[Kind, ...]
    """The kinds of these."""
    names: tuple[str, ...]
    """The names of the last ones."""
    origin: Origin
    """Where the program makes the value."""
    serial: int
    """Values are made after those that they are made from."""

    def __init__(self, made: Value, dtype: DType, shape: Shape, layout: Layout | None) -> None:
        self.made, self.dtype, self.shape, self.layout = made, dtype, shape, layout

    def wait(
        self, function: Function, inputs: Sequence[Value], kinds: tuple[Kind, ...], names: tuple[str, ...] = ()
    ) -> None:
        """Say what will make this value."""
        self.function, self.inputs, self.kinds, self.names = function, tuple(inputs), kinds, names
        self.serial, self.origin = next(_serials), here()


class Job(NamedTuple):
    """A program with what it runs on.

    Parameters
    ----------
    source: the program
    leaves, shape, layout, origins: as `evaluated` has them
    wanted: the values that it computes
    """

    source: Source
    leaves: Sequence[Value]
    shape: Shape
    layout: Layout | None
    origins: list[Origin]
    wanted: Sequence[Waiting]

    def run(self) -> None:
        """Compute the values that are wanted. Collective as `evaluated`."""
        made = evaluated(compiled(self.source), self.leaves, self.shape, self.layout, self.origins)
        for each, value in zip(self.wanted, made, strict=True):
            each.made, each.inputs, each.kinds = value, (), ()  # what it was made from is no longer held


def jobs_for(wanted: Iterable[Waiting]) -> list[Job]:
    """Return what computes values that wait: one program for those of one shape and layout."""
    groups: dict[tuple[object, ...], dict[int, Waiting]] = {}
    for each in wanted:
        if each.made is None:
            of = _elements(each)
            alike = of.shape, of.layout, None if of.layout is None else id(of.layout.mesh)
            groups.setdefault(alike, {})[each.serial] = each
    return [_job([*group.values()]) for group in groups.values()]


def compute(wanted: Iterable[Waiting]) -> None:
    """Compute values that wait, while the function runs. Collective as `evaluated`."""
    for job in jobs_for(wanted):
        tick()
        job.run()


def tick() -> int:
    """Return how often this was called: before something is computed, so that a call is known in which nothing was."""
    return next(_ticks)


def _job(group: Sequence[Waiting]) -> Job:
    """Return what computes values of one shape and layout, and totals of such values."""
    members: dict[int, Waiting] = {}
    waiting = [*group]
    while waiting:
        each = waiting.pop()
        if each.serial not in members:
            members[each.serial] = each
            waiting += [x for x in each.inputs if isinstance(x, Waiting) and x.made is None]
    steps = [members[serial] for serial in sorted(members) if members[serial].shape]
    outputs, totals = ([each for each in group if bool(each.shape) is wanted] for wanted in (True, False))
    leaves: dict[int, tuple[Value, Kind]] = {}
    for each in (*steps, *totals):
        for x, kind in zip(each.inputs, each.kinds, strict=True):
            value = _value(x)
            if not isinstance(value, Waiting):
                leaves.setdefault(id(value), (value, kind))
    numbers = {key: number for number, key in enumerate((*leaves, *map(id, steps)))}

    def inputs(of: Waiting) -> tuple[int, ...]:
        return tuple(numbers[id(_value(x))] for x in of.inputs)

    source = Source(
        tuple(kind for _, kind in leaves.values()),
        tuple(Step(each.function, inputs(each), each.names) for each in steps),
        tuple(numbers[id(each)] for each in outputs),
        tuple((each.function, inputs(each)[0]) for each in totals),
    )
    of, origins = _elements(group[0]), [each.origin for each in (*steps, *totals)]
    return Job(source, [x for x, _ in leaves.values()], of.shape, of.layout, origins, (*outputs, *totals))


def _elements(x: Waiting) -> Waiting:
    """Return what *x* is a total of, or else *x*."""
    return x if x.shape else x.inputs[0]


def _value(x: Value) -> Value:
    """Return the array, tensor or number that is there; a value that waits as it is."""
    return x.made if isinstance(x, Waiting) and x.made is not None else x


# -- what functions take and return -----------------------------------------------------------------------------------


def waiting_in(held: Value) -> Iterable[Waiting]:
    """Yield the values in nested tuples, lists and dicts."""
    if isinstance(held, Waiting):
        yield held
    elif isinstance(held, tuple | list | dict):
        for each in held.values() if isinstance(held, dict) else held:
            yield from waiting_in(each)


def computed(held: Value) -> Value:
    """Return nested tuples, lists and dicts with the arrays, tensors and numbers in them that values are."""
    if isinstance(held, Waiting):
        return held.made
    if isinstance(held, dict):
        return {key: computed(each) for key, each in held.items()}
    if isinstance(held, tuple | list):
        items = [computed(each) for each in held]
        return type(held)(*items) if hasattr(held, "_fields") else type(held)(items)
    return held
