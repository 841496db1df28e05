"""`fuse`: elementwise operations that go over their operands once."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from meshcomm.core._arguments import quote
from meshcomm.core._tracing import is_traced
from meshcomm.core.arrays._waiting import begin_fusing, end_fusing
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.fusing.deferred import compute_nested, operand

P = ParamSpec("P")
R = TypeVar("R")


def fuse(function: Callable[P, R]) -> Callable[P, R]:
    """Return *function* as one whose elementwise operations are computed together, in pieces that stay in the cache.

    Operations on large tensors do so anyway. In a fused function those on large plain arrays do, too, and those on
    tensors whose memory the program has, as from `from_local`: no other code may write to it while *function* runs.
    When it returns, everything is computed. Values are those of *function*, bit for bit.

    All ranks of the mesh make the call, as they would make that of *function*.

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

    @refusable
    @wraps(function)
    def fused(*args: P.args, **kwargs: P.kwargs) -> R:
        values = [*map(unwrapped, args), *map(unwrapped, kwargs.values())]
        if any(map(is_traced, values)) or not begin_fusing():  # autograd calls this, or a fused function
            return function(*args, **kwargs)
        succeeded = False
        try:
            result = function(*args, **kwargs) if _has_tensor(values) else _of_arrays(function, args, kwargs)
            succeeded = True
        finally:
            end_fusing(succeeded)
        return result

    return fused


def _has_tensor(values: list[object]) -> bool:
    return any(isinstance(x, DTensor) for x in values)


def _of_arrays(function: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> R:
    return compute_nested(function(*map(operand, args), **{name: operand(x) for name, x in kwargs.items()}))
