"""`transform_as_scipy`: every transform of one tensor in `meshcomm.fft` calls it."""

from meshcomm.blocks.session import session
from meshcomm.core._arguments import as_integer
from meshcomm.core._tracing import traceable, untraced
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.machine import Machine
from meshcomm.errors import ShapeError
from meshcomm.fft.calls import Ints, transform_of
from meshcomm.fft.execute import FFTOptions, check_options, run_steps
from meshcomm.fft.kinds import Transform
from meshcomm.fft.planning import ResultLayout, target_layout
from meshcomm.fft.search import cheapest


def one_axis(n: object, axis: object) -> tuple[Ints, Ints]:
    """Return *s* and *axes* of a function along one axis; ``TypeError`` for several, or None."""
    number = as_integer(axis, "axis", TypeError)
    return None if n is None else (as_integer(n, "n", ShapeError),), (number,)


def transform_as_scipy(
    name: str,
    x: DTensor,
    lengths: tuple[Ints, Ints],
    options: FFTOptions,
    layout: ResultLayout,
    *,
    norm: str | None = None,
    variant: int = 2,
    orthogonalize: bool | None = None,
) -> DTensor:
    """Return the transform of *x* by the function *name* of SciPy. Collective if *x* is sharded.

    Parameters
    ----------
    name: name of the function
    x: a tensor
    lengths: the arguments *s* and *axes* of the call
    options, layout: options and layout of the result, see `transformed`
    norm, variant, orthogonalize: arguments of the transform
    """
    tensor = as_tensor(f"fft.{name}", untraced(x))
    transform = transform_of(name, tensor.shape, *lengths, norm=norm, variant=variant, orthogonalize=orthogonalize)
    transform.check_input(tensor.dtype)
    check_options(options, transform)
    return transformed(x, transform, layout, options)


@traceable()
def transformed(x: DTensor, transform: Transform, layout: ResultLayout, options: FFTOptions) -> DTensor:
    """Return the *transform* of the tensor *x*. Collective if *x* is sharded.

    Parameters
    ----------
    x: a tensor
    transform: the transform, with all its lengths
    layout: layout of the result; "same" for the layout of *x*, None for the layout after the last transform
    options: backend, workers and whether to overwrite
    """
    tensor = as_tensor(f"fft.{transform.name}", x)
    target = target_layout(layout, tensor.layout, transform, tensor.shape)
    with session(transform.operation, tensor.mesh, None if target is None else target.mesh) as call_session:
        machine = Machine() if call_session is None else call_session.machine
        steps = cheapest(transform, (tensor.shape, tensor.dtype), tensor.layout, target, machine)
        return run_steps(steps, [tensor], options)[0]
