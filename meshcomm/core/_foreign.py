"""Arrays of PyTorch, JAX, CuPy and others: what NumPy can read of them in place. None of them is imported here."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from meshcomm.core._types import Array
from meshcomm.errors import DTypeError

ForeignArray: TypeAlias = Any
"""An array of another library, such as PyTorch, of which this package has no types."""

_HOST = (1, 3, 11)
"""DLPack's numbers for the memory of the host: plain, pinned for CUDA, pinned for ROCm."""

_COPY = {
    "torch": "x.detach().cpu()",
    "cupy": "x.get()",
    "jax": "jax.device_get(x)",
    "jaxlib": "jax.device_get(x)",
    "numba": "x.copy_to_host()",
}
"""How an array gets to the host, by the library that it is of."""


def is_foreign(x: object) -> bool:
    """Return whether *x* is an array of another library, which may be on a GPU.

    >>> is_foreign(np.zeros(2)), is_foreign([0.0, 0.0])
    (False, False)
    """
    kind = type(x)
    if (
        isinstance(x, np.ndarray | np.generic) or kind.__module__ == "meshcomm"
    ):  # a tensor refuses to export its memory
        return False
    return hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__")


def as_numpy(x: ForeignArray) -> Array:
    """Return a NumPy array in the memory of *x*, an array of another library.

    ``DTypeError`` if it is not in the memory of the host, if PyTorch needs a gradient for it, or if NumPy has no such
    dtype. bfloat16 and the like are dtypes of ml_dtypes.
    """
    name = _class_name(x)
    _check_on_host(x, name)
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(x, torch.Tensor):
            return _of_torch(x, name, torch)
        array: Array = np.asarray(x) if hasattr(type(x), "__array__") else np.from_dlpack(x)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        if isinstance(error, DTypeError):
            raise
        raise DTypeError(f"NumPy cannot read this {name}: {error}") from None
    return array


def values_of(x: ForeignArray) -> Array:
    """Return a NumPy array in the memory of *x*, whose values count, and not its gradient. Errors are as_numpy's."""
    return as_numpy(x.detach() if hasattr(x, "detach") else x)


def _class_name(x: object) -> str:
    return f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}"


def _check_on_host(x: object, name: str) -> None:
    ask = getattr(x, "__dlpack_device__", None)
    try:
        on_host = getattr(x, "__cuda_array_interface__", None) is None if ask is None else int(ask()[0]) in _HOST
    except (TypeError, ValueError, RuntimeError, BufferError):  # such as a JAX array on several devices of the host
        on_host = "cpu" in str(getattr(x, "device", "cpu")).lower()
    if not on_host:
        copy = _COPY.get(name.partition(".")[0])
        where = f" on {x.device}" if hasattr(x, "device") else ""
        raise DTypeError(
            f"this {name} is{where}, not in the memory of the host, where blocks are: pass "
            f"{copy or 'a copy that is there'}"
        )


def _of_torch(x: ForeignArray, name: str, torch: ModuleType) -> Array:
    if hasattr(x, "to_local"):
        raise DTypeError(f"this {name} is a distributed one: pass x.to_local(), the block of this rank")
    if x.requires_grad:
        raise DTypeError(
            f"this {name} needs a gradient, which would be lost here: pass x.detach(), or use meshcomm.torch, whose "
            "functions pass gradients on"
        )
    if x.layout is not torch.strided:
        raise DTypeError(f"this {name} has layout {x.layout}: pass x.to_dense()")
    x = x.resolve_conj().resolve_neg()
    kind = str(x.dtype).removeprefix("torch.")
    if hasattr(np, kind):
        return x.numpy()
    try:
        dtype = np.dtype(getattr(import_module("ml_dtypes"), kind))
    except (ImportError, AttributeError) as error:
        raise DTypeError(f"NumPy has no dtype {kind}: {error}") from None
    of_bits: Array = x.view((torch.int8, torch.int16, torch.int32)[x.itemsize // 2]).numpy()
    return of_bits.view(dtype)
