"""The inspection interface of a namespace in the array API standard."""

import numpy as np

from meshcomm.core._types import DType
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.meshes import mesh_of_program
from meshcomm.numpy.namespace.devices import Device

Kind = str | tuple[str, ...]

_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)


class Info:
    """The result of `__array_namespace_info__`, for the namespace of *mesh* or for the module."""

    def __init__(self, mesh: Mesh | None = None) -> None:
        self._mesh = mesh

    def capabilities(self) -> dict[str, bool | int | None]:
        """Return what the namespace can do: masks, and functions such as ``nonzero`` and ``unique_values``."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Mesh:
        """Return the mesh of the namespace, else that of `default_mesh`, else that of all ranks."""
        return mesh_of_program() if self._mesh is None else self._mesh

    def devices(self) -> tuple[Mesh, ...]:
        """Return the default device; any other mesh, and any layout, is a device too."""
        return (self.default_device(),)

    def default_dtypes(self, *, device: Device | None = None) -> dict[str, DType]:
        """Return the dtypes of numbers that come without one; they are the same on all devices."""
        return {
            "real floating": np.dtype(np.float64),
            "complex floating": np.dtype(np.complex128),
            "integral": np.dtype(np.int64),
            "indexing": np.dtype(np.int64),
        }

    def dtypes(self, *, device: Device | None = None, kind: Kind | None = None) -> dict[str, DType]:
        """Return the dtypes of the standard, or those of a *kind* or of several, as ``isdtype`` knows kinds.

        >>> sorted(Info().dtypes(kind="real floating"))
        ['float32', 'float64']
        """
        dtypes = {name: np.dtype(name) for name in _NAMES}
        return {name: dtype for name, dtype in dtypes.items() if kind is None or np.isdtype(dtype, kind)}


def __array_namespace_info__() -> Info:  # noqa: N807 - the standard's name
    """Return what this namespace can do, and its devices and dtypes."""
    return Info()
