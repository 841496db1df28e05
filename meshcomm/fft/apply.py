"""One transform of one tensor: what every function of `meshcomm.fft` calls."""

from meshcomm.blocks.session import session
from meshcomm.core._arguments import integer
from meshcomm.core._tracing import Value, traceable, untraced
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.machine import Machine
from meshcomm.errors import ShapeError
from meshcomm.fft.calls import Some, transform_of
from meshcomm.fft.execute import Options, check_options, run_steps
from meshcomm.fft.kinds import Transform
from meshcomm.fft.planning import Wanted, target_layout
from meshcomm.fft.search import cheapest


def one_axis(n: object, axis: object) -> tuple[Some, Some]:
    """Return *s* and *axes* of a function along one axis; ``TypeError`` for several, or None."""
    number = integer(axis, "axis", TypeError)
    return None if n is None else (integer(n, "n", ShapeError),), (number,)


def called(
    name: str, x: Value, lengths: tuple[Some, Some], options: Options, layout: Wanted, **others: Value
) -> DTensor:
    """Return the transform of *x* that a call of one of SciPy's functions asks for. Collective if *x* is sharded.

    Parameters
    ----------
    name: of the function
    x: a tensor
    lengths: the arguments *s* and *axes* of the call
    options, layout: as in `transformed`
    others: norm, variant and orthogonalize
    """
    tensor = as_tensor(f"fft.{name}", untraced(x))
    transform = transform_of(name, tensor.shape, *lengths, **others)
    transform.check_input(tensor.dtype)
    check_options(options, transform)
    return transformed(x, transform, layout, options)


@traceable()
def transformed(x: Value, transform: Transform, layout: Wanted, options: Options) -> DTensor:
    """Return the *transform* of the tensor *x*. Collective if *x* is sharded.

    Parameters
    ----------
    x: a tensor
    transform: which, with all its lengths
    layout: of the result; "same" for that of *x*, None for the one after the last transform
    options: how
    """
    tensor = as_tensor(f"fft.{transform.name}", x)
    target = target_layout(layout, tensor.layout, transform, tensor.shape)
    with session(transform.operation, tensor.mesh, None if target is None else target.mesh) as here:
        machine = Machine() if here is None else here.machine
        steps = cheapest(transform, (tensor.shape, tensor.dtype), tensor.layout, target, machine)
        return run_steps(steps, [tensor], options)[0]
