"""Greyscale morphology composed of erosions and dilations, as in SciPy.

For arguments and errors, see :mod:`meshcomm.ndimage.filters`.
"""

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.make import map_into
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, TensorLike
from meshcomm.ndimage.arguments import Axes, Ints, Modes, Number, Output
from meshcomm.ndimage.calls import input_tensor, requested_dtype, write_output
from meshcomm.ndimage.filters import grey_dilation, grey_erosion
from meshcomm.numpy.elementwise.families import family


def _tophat(result: Array, block: Array, *, is_opening: bool) -> None:
    """Write the difference of *result*, an opening or a closing, and *block* into *result*; of booleans, their xor."""
    if result.dtype == bool and block.dtype == bool:
        np.bitwise_xor(result, block, out=result)
    else:
        np.subtract(*((block, result) if is_opening else (result, block)), out=result)


def _gradient(eroded: Array, dilated: Array, block: Array) -> None:
    np.subtract(dilated, eroded, eroded)


def _laplace(eroded: Array, dilated: Array, block: Array) -> None:
    np.add(dilated, eroded, eroded)
    np.subtract(eroded, block, eroded)
    np.subtract(eroded, block, eroded)


@family("scipy.ndimage")
def _composed(
    name: str,
    input: TensorLike,
    size: Ints | None = None,
    footprint: ArrayLike | None = None,
    structure: ArrayLike | None = None,
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    origin: Ints = 0,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return the greyscale dilation of the erosion. Collective over the mesh.

    Arguments are those of `grey_erosion`.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.grey_opening(mc.distribute([1, 5, 1, 3, 3, 3], rows), 3).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[1, 1, 1], [3, 3, 3]]
    """
    tensor, window = input_tensor(name, input), (size, footprint, structure)

    def filtered(function: Callable[..., DTensor], operand: DTensor, target: Output = None) -> DTensor:
        return function(operand, *window, target, mode, cval, origin, axes=axes)

    if name.startswith("morphological"):
        dilated = filtered(grey_dilation, tensor)
        eroded = filtered(grey_erosion, tensor, output.dtype if isinstance(output, DTensor) else None)
        combine = _gradient if name == "morphological_gradient" else _laplace
        return write_output(map_into(combine, eroded, dilated, tensor), output)
    if size is not None and footprint is not None:
        warnings.warn("ignoring size because footprint is set", UserWarning, stacklevel=5)
    is_opening = name in ("grey_opening", "white_tophat")
    order = (grey_erosion, grey_dilation) if is_opening else (grey_dilation, grey_erosion)
    result = filtered(order[1], filtered(order[0], tensor), requested_dtype(output))
    if name.endswith("tophat"):
        map_into(partial(_tophat, is_opening=is_opening), result, tensor)
    return write_output(result, output)


grey_opening = _composed("grey_opening")
grey_closing = _composed("grey_closing", "Return the greyscale erosion of the dilation. Collective over the mesh.")
morphological_gradient = _composed(
    "morphological_gradient", "Return the dilation less the erosion. Collective over the mesh."
)
morphological_laplace = _composed(
    "morphological_laplace",
    "Return the dilation and the erosion added up, less twice the tensor. Collective over the mesh.",
)
white_tophat = _composed("white_tophat", "Return the tensor less its opening. Collective over the mesh.")
black_tophat = _composed("black_tophat", "Return the closing less the tensor. Collective over the mesh.")
