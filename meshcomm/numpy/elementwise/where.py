"""numpy.where, with two choices."""

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.map import deciding
from meshcomm.blocks.rules import text_as_scalar
from meshcomm.core._tracing import traceable
from meshcomm.core.arrays._recipes import Call
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.numpy.elementwise.signatures import operation


@operation()
@traceable(3, twin=np.where)
def where(condition: DTensor | ArrayLike, x: DTensor | ArrayLike, y: DTensor | ArrayLike) -> Call | DTensor:
    """Return *x* where *condition* is true and *y* elsewhere, as numpy.where. Collective if an operand has to move.

    One of the operands must be a tensor. The rules of :mod:`meshcomm.blocks.rules` give the layout of the
    result.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.where(t > 1, t, 0).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0, 0], [2, 3]]
    """
    operands = [text_as_scalar(unwrapped(operand)) for operand in (condition, x, y)]
    return deciding("numpy.where", np.where, operands)  # type: ignore[return-value]  # one result
