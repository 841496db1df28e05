"""What a tensor is, apart from its block: one object for equal ones, so that they are compared by identity."""

from threading import RLock
from typing import final
from weakref import ref

from meshcomm.core._types import DType, Shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh


@final
class TensorSpec:
    """The layout, with its mesh, the global shape and the dtype of a tensor. Equal specs are one object on a rank.

    So a spec is equal to itself only, and its hash is that of an object: it is the key of what is kept for a call.
    Meshes are equal here if they are one object, as equal meshes may belong to different worlds. JAX calls it an
    abstract value with a sharding, PyTorch a DTensorSpec.

    >>> import numpy as np
    >>> mesh = Mesh(range(2), {"x": 2})
    >>> spec = TensorSpec(Layout(["x"], mesh), (3,), np.dtype("f8"))
    >>> spec is TensorSpec(Layout(["x"], mesh), (3,), np.dtype("f8")), spec.mesh is mesh
    (True, True)
    """

    __slots__ = ("__weakref__", "dtype", "layout", "mesh", "shape")

    layout: Layout
    """How the global array is cut over the mesh."""
    shape: Shape
    """The shape of the global array."""
    dtype: DType
    """The dtype of the elements."""
    mesh: Mesh
    """The mesh of the layout."""

    def __new__(cls, layout: Layout, shape: Shape, dtype: DType) -> "TensorSpec":
        mesh = layout._mesh
        # NumPy takes dtypes for equal that differ in what they carry along.
        carried = None if dtype.metadata is None else id(dtype)
        key = layout, id(mesh), shape, dtype, dtype.isalignedstruct, carried
        held = _specs.get(key)
        found = None if held is None else held()
        return cls._made(key, layout, shape, dtype) if found is None else found

    @classmethod
    def _made(cls, key: tuple[object, ...], layout: Layout, shape: Shape, dtype: DType) -> "TensorSpec":
        with _making:  # ranks that are simulated are threads
            held = _specs.get(key)
            found = None if held is None else held()
            if found is None:
                found = object.__new__(cls)
                found.layout, found.shape, found.dtype, found.mesh = layout, shape, dtype, layout.mesh
                _specs[key] = _Held(found, _forget)
                _specs[key].key = key
            return found

    def __repr__(self) -> str:
        return f"TensorSpec({self.layout!r}, {self.shape}, {self.dtype})"


class _Held(ref[TensorSpec]):
    """A spec, as long as somebody else has it."""

    __slots__ = ("key",)

    key: tuple[object, ...]


def _forget(held: "ref[TensorSpec]") -> None:
    assert isinstance(held, _Held)
    if _specs.get(held.key) is held:  # no other one is there instead
        del _specs[held.key]


_specs: dict[tuple[object, ...], _Held] = {}
_making = RLock()
