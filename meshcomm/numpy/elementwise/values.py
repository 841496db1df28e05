"""Elementwise functions of NumPy that are not ufuncs: astype and view, real and imag, clip, round."""

import warnings
from operator import methodcaller

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import mapped, mapping
from meshcomm.blocks.map import deciding
from meshcomm.blocks.moved import moved_view
from meshcomm.blocks.rules import ADVICE
from meshcomm.blocks.small import agree_on_result
from meshcomm.blocks.views import abstract_array, abstract_array_like, check_writable, viewing, with_strides
from meshcomm.core._arguments import as_dtype
from meshcomm.core._callers import warning_at_program
from meshcomm.core._types import AnyDict, Array, Casting
from meshcomm.core.arrays._recipes import Call, converted
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.specs import Cuts
from meshcomm.core.memory.copies import exact_copy
from meshcomm.errors import DTypeError
from meshcomm.numpy.elementwise.signatures import operation


@operation(np.ndarray.astype, getattr(np, "astype", None))
def astype(
    x: DTensor, dtype: DTypeLike, *, casting: Casting = "unsafe", copy: bool = True, device: object = None
) -> Call | DTensor:
    """Return the tensor converted to *dtype*; the tensor itself if it has this dtype and *copy* is False.

    Collective over the mesh if texts become numbers: if one rank cannot convert, all ranks raise the error.
    ``TypeError`` if NumPy's rule *casting* does not allow the conversion.
    """
    tensor = as_tensor("astype", x)
    if device not in (None, "cpu"):
        raise TypeError(f"numpy.astype: device={device!r} is not supported for DTensors; blocks are in memory")
    with warnings.catch_warnings(action="ignore"):  # each call warns when it converts
        new_dtype = as_dtype(np.empty(0, tensor.dtype).astype(dtype, casting=casting).dtype)
    if new_dtype == tensor.dtype:
        return tensor.copy() if copy else tensor
    convert = methodcaller("astype", new_dtype, order="C")
    if tensor.dtype.kind in "SU" and new_dtype.kind not in "SUV":
        call = f"astype of {tensor.shape} {tensor.dtype} to {new_dtype}"
        return agree_on_result("astype", tensor.mesh, call, lambda: mapped(convert, tensor, dtype=new_dtype))
    if tensor.dtype.kind == "c" and new_dtype.kind != "c":  # NumPy warns
        return mapping(warning_at_program(convert), tensor, dtype=new_dtype, warns_at_program=True)
    return mapping(convert, tensor, dtype=new_dtype, warns_at_program=True, write=converted)


@operation(np.ndarray.view)
def view(a: DTensor, dtype: DTypeLike | None = None) -> Call | DTensor:
    """Return a tensor of the same memory with another dtype.

    Collective if an element of the new size would be on two devices. To change the size of elements, the last axis
    must be consecutive in memory, and its bytes a multiple of the new size; else ``DTypeError``.
    """
    tensor = as_tensor("t.view", a)
    new_dtype = tensor.dtype if dtype is None else as_dtype(dtype)
    take = methodcaller("view", new_dtype)
    if new_dtype.itemsize == tensor.dtype.itemsize:
        return viewing(take, tensor, tensor.layout)
    try:
        abstract_view: Array = take(abstract_array(tensor))
    except ValueError as error:
        raise DTypeError(f"t.view of {tensor.dtype} as {new_dtype}: {error}") from None
    layout = _layout_for_itemsize(tensor, new_dtype.itemsize)
    if layout is not None:
        return viewing(take, tensor, layout)

    def fetch(base: DTensor) -> DTensor:
        relaid_base = relaid(base, base.layout.replace(base.ndim - 1, ()).axes, "t.view")
        return mapped(take, relaid_base, shape=abstract_view.shape, dtype=new_dtype)

    def write_to_base(base: DTensor, view: DTensor) -> None:
        base[...] = mapped(methodcaller("view", base.dtype), view, shape=base.shape, dtype=base.dtype)

    return moved_view(tensor, fetch(tensor), abstract_view, fetch, write_to_base)


def _layout_for_itemsize(tensor: DTensor, itemsize: int) -> Layout | None:
    """Return the layout of *tensor* viewed with elements of *itemsize* bytes; None if one would be on two devices."""
    axis, size = tensor.ndim - 1, tensor.dtype.itemsize
    cut = tensor.layout.cut(axis, tensor.shape[axis])
    if cut.blocks == 1:
        return tensor.layout
    ends = [start * size for start in cut.all_starts()] if cut.is_consecutive else []
    if not ends or any(end % itemsize for end in ends):
        return None
    return tensor.layout.replace(axis, Cuts(tuple(tensor.layout.axes[axis]), [end // itemsize for end in ends]))


@operation(np.clip)
def clip(
    a: object, a_min: object = None, a_max: object = None, out: object = None, **options: object
) -> object:  # as NumPy's, with min= and max= as other names
    """Return *a* limited to bounds, which may be tensors, as numpy.clip. Collective if an operand has to move."""
    low, high = options.pop("min", a_min), options.pop("max", a_max)
    if options:
        raise TypeError(f"numpy.clip of DTensors takes no {', '.join(options)}=; it takes a_min, a_max, and out")
    bounds = [unwrapped(x) for x in (low, high)]
    given_bounds = [x for x in bounds if x is not None]

    is_missing = [x is None for x in bounds]  # a recipe would keep the bounds themselves alive

    def clip_block(block: Array, *bound_blocks: Array, **out_kwargs: object) -> object:
        bounds_iterator = iter(bound_blocks)
        return np.clip(
            block, *(None if missing else next(bounds_iterator) for missing in is_missing), **_out_argument(out_kwargs)
        )

    return deciding("numpy.clip", clip_block, [unwrapped(a), *given_bounds], _out_tuple("clip", out))


@operation(np.round, np.around)
def around(a: object, decimals: int = 0, out: object = None) -> object:
    """Return the values of *a* rounded to *decimals*, as numpy.round."""

    def round_block(block: Array, **out_kwargs: object) -> object:
        result = np.round(block, decimals, **_out_argument(out_kwargs))
        return exact_copy(result) if result is block else result  # NumPy returns integers as they are

    return deciding("numpy.round", round_block, [unwrapped(a)], _out_tuple("round", out))


@operation(np.real)
def real(val: object) -> object:
    """Return the real parts: a view of complex numbers, and real numbers themselves."""
    tensor = as_tensor("real", val)
    return tensor if tensor.dtype.kind != "c" else viewing(np.real, tensor, tensor.layout)


@operation(np.imag)
def imag(val: object) -> object:
    """Return the imaginary parts: a view of complex numbers; read-only zeros for other dtypes."""
    tensor = as_tensor("imag", val)
    if tensor.dtype.kind == "c":
        return viewing(np.imag, tensor, tensor.layout)
    zeros = mapped(lambda block: np.zeros(block.shape, block.dtype), tensor)
    return with_strides(zeros, abstract_array_like(tensor))


def _out_tuple(name: str, out: object) -> tuple[DTensor, ...]:
    if out is None:
        return ()
    targets = tuple(map(unwrapped, out if isinstance(out, tuple) else (out,)))
    if len(targets) != 1 or not isinstance(targets[0], DTensor):
        raise TypeError(f"numpy.{name}: out= must be a DTensor where an operand is one; {ADVICE}")
    check_writable(f"numpy.{name}: out=", targets[0])
    return targets


def _out_argument(out_kwargs: AnyDict) -> AnyDict:
    """Return ``out=`` as one array, for functions that take no tuple."""
    return {name: out[0] for name, out in out_kwargs.items()}
