"""Specs: layout, shape and dtype of a tensor. Equal specs are one object, so they are compared by identity."""

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

    So a spec equals only itself, and has the hash of an object: it is a key for recipes and prepared calls. Here,
    meshes are equal only if they are one object, as equal meshes may belong to different worlds. JAX calls a spec an
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
    """Recipes of calls on a first tensor with this spec, by their signatures: see meshcomm.core.arrays._tensor."""
    cuts: tuple[tuple[int, ...] | None, ...] | None
    """The starts of blocks of each axis, as `meshcomm.core.arrays._indices.sliced` takes them; None until needed."""

    def __new__(cls, layout: Layout, shape: Shape, dtype: DType) -> "TensorSpec":
        mesh = layout._mesh
        # For NumPy, dtypes that differ in their metadata only are equal.
        metadata_id = None if dtype.metadata is None else id(dtype)
        value_key = layout, id(mesh), shape, dtype, dtype.isalignedstruct, metadata_id
        with _lock:  # ranks that are simulated are threads
            reference = _specs.get(value_key)
            spec = None if reference is None else reference()
            if spec is None:
                spec = super().__new__(cls)
                spec.layout, spec.mesh, spec.shape, spec.dtype = layout, mesh, tuple(map(int, shape)), dtype
                spec.recipes, spec.cuts = {}, None
                new_reference = _SpecReference(spec, _forget_spec)
                new_reference.keys = value_key, (id(layout), spec.shape, id(dtype))
                _specs.update(dict.fromkeys(new_reference.keys, new_reference))
                _recent_specs.append(spec)
            return spec

    def find_cuts(self) -> tuple[tuple[int, ...] | None, ...]:
        """Find `cuts`, and return them."""
        cuts: list[tuple[int, ...] | None] = []
        for axis, blocks in enumerate(self.layout._shards):
            cut = None if blocks == 1 else self.layout.cut(axis, self.shape[axis])
            cuts.append(None if cut is None else tuple(cut.all_starts()) if cut.is_consecutive else ())
        self.cuts = tuple(cuts)
        return self.cuts

    def __repr__(self) -> str:
        return f"TensorSpec({self.layout!r}, {self.shape}, {self.dtype})"


class _SpecReference(ref[TensorSpec]):
    """A weak reference to a spec, with its keys in `_specs`."""

    __slots__ = ("keys",)

    keys: tuple[tuple[object, ...], tuple[object, ...]]


_specs: dict[tuple[object, ...], _SpecReference] = {}
known_spec = _specs.get
"""Return a reference to the spec for the key ``(id(layout), shape, id(dtype))``, None if there is none.

A spec keeps its layout and dtype, so while it exists no other objects have their ids. This saves the call of
``TensorSpec``.
"""
_recent_specs: deque[TensorSpec] = deque(maxlen=SPECS)
"""The last new specs: a loop that drops its results finds the specs of its last turn here."""
_lock = RLock()


def _forget_spec(reference: "ref[TensorSpec]", specs: dict[tuple[object, ...], _SpecReference] = _specs) -> None:
    # At the end of Python, the names of this module may be deleted before the specs.
    for key in reference.keys:  # type: ignore[attr-defined]  # of a _SpecReference
        if specs.get(key) is reference:  # it may have been replaced
            del specs[key]


def forget_recipes() -> None:
    """Forget all recipes: some ranks have left a call before its end, and have recipes that others lack."""
    with _lock:
        for spec in filter(None, [reference() for reference in _specs.values()]):
            spec.recipes.clear()


class View(NamedTuple, Generic[T]):
    """How a tensor shares memory.

    Parameters
    ----------
    root: tensor that owns the block; None for the tensor itself
    strides: strides of NumPy's global array, in bytes
    writeable: whether NumPy lets programs write to the array
    begin: byte offset of the first element in NumPy's global array of *root*
    """

    root: T | None
    strides: Shape
    writeable: bool = True
    begin: int = 0
