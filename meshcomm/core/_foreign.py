"""Arrays of PyTorch, JAX, CuPy and others, as NumPy arrays in the same memory. No library is imported for them."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from meshcomm.core._types import Array
from meshcomm.errors import DTypeError

ForeignArray: TypeAlias = Any
"""An array of another library, such as PyTorch, without types here."""

_HOST = (1, 3, 11)
"""DLPack's numbers for the memory of the host: plain, pinned for CUDA, pinned for ROCm."""

_COPY_CODE = {
    "torch": "x.detach().cpu()",
    "cupy": "x.get()",
    "jax": "jax.device_get(x)",
    "jaxlib": "jax.device_get(x)",
    "numba": "x.copy_to_host()",
}
"""Code that copies an array to the host, by its library."""


def is_foreign(x: object) -> bool:
    """Return whether *x* is an array of another library, maybe on a GPU.

    >>> is_foreign(np.zeros(2)), is_foreign([0.0, 0.0])
    (False, False)
    """
    array_type = type(x)
    # DTensors do not export their memory.
    if isinstance(x, np.ndarray | np.generic) or array_type.__module__ == "meshcomm":
        return False
    return hasattr(array_type, "__dlpack__") or hasattr(array_type, "__cuda_array_interface__")


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
    """Return a NumPy array in the memory of *x*, without its gradient. Errors are those of `as_numpy`."""
    return as_numpy(x.detach() if hasattr(x, "detach") else x)


def _class_name(x: object) -> str:
    return f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}"


def _check_on_host(x: object, name: str) -> None:
    device = getattr(x, "__dlpack_device__", None)
    try:
        on_host = getattr(x, "__cuda_array_interface__", None) is None if device is None else int(device()[0]) in _HOST
    except (TypeError, ValueError, RuntimeError, BufferError):  # such as a JAX array on several devices of the host
        on_host = "cpu" in str(getattr(x, "device", "cpu")).lower()
    if not on_host:
        copy_code = _COPY_CODE.get(name.partition(".")[0])
        device_text = f" on {x.device}" if hasattr(x, "device") else ""
        raise DTypeError(
            f"this {name} is{device_text}, not in the memory of the host, where blocks are: pass "
            f"{copy_code or 'a copy that is there'}"
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
    dtype_name = str(x.dtype).removeprefix("torch.")
    if hasattr(np, dtype_name):
        return x.numpy()
    try:
        dtype = np.dtype(getattr(import_module("ml_dtypes"), dtype_name))
    except (ImportError, AttributeError) as error:
        raise DTypeError(f"NumPy has no dtype {dtype_name}: {error}") from None
    bits: Array = x.view((torch.int8, torch.int16, torch.int32)[x.itemsize // 2]).numpy()
    return bits.view(dtype)
