"""What a tensor is, apart from its block: one object for equal ones, so that they are compared by identity."""

from collections import deque
from threading import RLock
from typing import Generic, NamedTuple, TypeVar, final
from weakref import ref

from meshcomm.core._tuning import SPECS
from meshcomm.core._types import DType, Shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh

T = TypeVar("T")  # a tensor: specs know none


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

    __slots__ = ("__weakref__", "cuts", "dtype", "layout", "mesh", "recipes", "shape")

    layout: Layout
    """How the global array is cut over the mesh."""
    shape: Shape
    """The shape of the global array."""
    dtype: DType
    """The dtype of the elements."""
    mesh: Mesh
    """The mesh of the layout."""
    recipes: dict[object, object]
    """How calls run whose first tensor has this spec, by their signatures: see meshcomm.core.arrays._tensor."""
    cuts: tuple[tuple[int, ...] | None, ...] | None
    """How axes are cut, as `meshcomm.core.arrays._indices.sliced` takes it; None as long as nobody has asked."""

    def __new__(cls, layout: Layout, shape: Shape, dtype: DType) -> "TensorSpec":
        mesh = layout._mesh
        # NumPy takes dtypes for equal that differ in what they carry along.
        carried = None if dtype.metadata is None else id(dtype)
        by_value = layout, id(mesh), shape, dtype, dtype.isalignedstruct, carried
        with _making:  # ranks that are simulated are threads
            reference = _specs.get(by_value)
            spec = None if reference is None else reference()
            if spec is None:
                spec = super().__new__(cls)
                spec.layout, spec.mesh, spec.shape, spec.dtype = layout, mesh, tuple(map(int, shape)), dtype
                spec.recipes, spec.cuts = {}, None
                new_reference = _SpecReference(spec, _forget)
                new_reference.keys = by_value, (id(layout), spec.shape, id(dtype))
                _specs.update(dict.fromkeys(new_reference.keys, new_reference))
                _recent.append(spec)
            return spec

    def find_cuts(self) -> tuple[tuple[int, ...] | None, ...]:
        """Find `cuts`, and return them."""
        starts: list[tuple[int, ...] | None] = []
        for axis, blocks in enumerate(self.layout._shards):
            cut = None if blocks == 1 else self.layout.cut(axis, self.shape[axis])
            starts.append(None if cut is None else tuple(cut.all_starts()) if cut.is_consecutive else ())
        self.cuts = tuple(starts)
        return self.cuts

    def __repr__(self) -> str:
        return f"TensorSpec({self.layout!r}, {self.shape}, {self.dtype})"


class _SpecReference(ref[TensorSpec]):
    """A spec, as long as somebody else has it."""

    __slots__ = ("keys",)

    keys: tuple[tuple[object, ...], tuple[object, ...]]


_specs: dict[tuple[object, ...], _SpecReference] = {}
known_spec = _specs.get
"""Returns a reference to the spec of ``(id(layout), shape, id(dtype))``, if these objects are its own; else None.

A spec keeps them: while it is there, no others have these identities. It is a call less than ``TensorSpec``.
"""
_recent: deque[TensorSpec] = deque(maxlen=SPECS)
"""The last ones that were made: a loop whose results are dropped need not make theirs again."""
_making = RLock()


def _forget(reference: "ref[TensorSpec]", specs: dict[tuple[object, ...], _SpecReference] = _specs) -> None:
    # As Python ends, the names of this module may be gone before the specs are.
    for key in reference.keys:  # type: ignore[attr-defined]  # of a _SpecReference
        if specs.get(key) is reference:  # no other one is there instead
            del specs[key]


def forget_recipes() -> None:
    """Forget how calls run, on all ranks: some have left a call before its end, and have recipes that others lack."""
    with _making:
        for spec in filter(None, [reference() for reference in _specs.values()]):
            spec.recipes.clear()


class View(NamedTuple, Generic[T]):
    """How a tensor shares memory.

    Parameters
    ----------
    root: the tensor that owns the block; None: the tensor itself
    strides: strides of NumPy's global array, in bytes
    writeable: True if NumPy lets programs write to it
    begin: the byte of NumPy's global array that owns the memory, where the first element is
    """

    root: T | None
    strides: Shape
    writeable: bool = True
    begin: int = 0
