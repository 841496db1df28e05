"""One element: ``t[i, j]``, which all devices get from its owner in one message, and ``t[i, j] = number``.

Loops over elements take each once. So nothing is kept by their indices, and nothing is planned. In scripts,
:mod:`meshcomm.numpy.indexing.pages` brings many at once.
"""

from collections.abc import Sequence
from functools import lru_cache
from sys import _getframe
from typing import Any, TypeGuard

import numpy as np

from meshcomm.blocks.make import make
from meshcomm.blocks.small import one_of_all
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import SMALL_MESHES
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.partition import Consecutive
from meshcomm.core.layouts.slicing import Items
from meshcomm.numpy.indexing.pages import PAGES, fetched, pages_of

KINDS = "biufc"


def element_of(tensor: DTensor, index: tuple[int, ...]) -> Value:
    """Return the element at *index*, an integer for each axis. Collective; None for what the long way has to say.

    It is a copy, on each device, as in NumPy. In a script it comes in a page, which further reads find: there it is a
    number, unless a function of ours asks.
    """
    pages = PAGES.get(id(tensor))
    if pages is not None and pages.version == pages.storage.version:
        page = pages.find(index)
        if page is not None:
            pages.hits += 1
            names = _getframe(1).f_globals
            if names is not pages.asker:
                if str(names.get("__name__")).startswith(_OURS):
                    return _as_tensor(page[0][page[1]], tensor._spec)
                pages.asker = names
            return page[0][page[1]]
    spec = tensor._spec
    where = _where(spec)
    if where is None:
        return None
    location = where.find(index)
    if location is None:
        return None
    device, at = location
    block = tensor._block
    if where.is_whole:
        return _as_tensor(block[at], spec)
    if is_scripted():
        paged = _paged(tensor, index, where)
        if paged is not None:
            return _as_tensor(paged, spec)
    mine = block[at].tobytes() if where.is_here(device) else b""
    data = one_of_all(f"t{list(index)}", spec, hash((device, *at)), mine, device)
    return _as_tensor(np.ndarray((), spec.dtype, data), spec)


_OURS = "meshcomm.", "numpy."


def _as_tensor(value: Value, spec: TensorSpec) -> DTensor:
    where = _where(spec)
    assert where is not None
    return make(np.array(value, spec.dtype), where.result, (), spec.dtype)


def _paged(tensor: DTensor, index: Sequence[int], where: "_ElementOwners") -> Value:
    """Return an element that comes in a new page; None if it is to come alone. Collective over the mesh."""
    pages, flat = pages_of(tensor), 0
    for i, n in zip(index, tensor.shape, strict=True):
        flat = flat * n + i % n
    flats = pages.wanted(flat)
    pages.count_call(tensor)
    if pages.whole is None:
        if flats is None:
            return None
        pages.came(fetched(tensor, flats, where.cuts, where.owners), flats)
    at = pages.find(index)
    assert at is not None
    return at[0][at[1]]


def is_element(items: Items, tensor: DTensor) -> TypeGuard[tuple[int, ...]]:
    """Return whether an index is one integer for each axis, and this rank has a block."""
    return tensor._has_block and tensor.ndim > 0 and all(type(item) is int for item in items)


def to_set(tensor: DTensor, index: tuple[int, ...], value: object) -> tuple[Array, tuple[Any, ...]] | None:
    """Return the array, and the index there, to which `t[index] = value` writes; None for what the long way has to do.

    *value* is a number, or a tensor of one, which all devices have. Devices that lack the element write it to an array
    of their own: so all ranks raise what NumPy raises.
    """
    spec = tensor._spec
    where = _where(spec)
    if where is None or np.ndim(value):  # type: ignore[arg-type]  # a tensor, too
        return None
    if isinstance(value, DTensor) and (value.mesh is not spec.mesh or value.dtype.kind not in KINDS):
        return None
    location = where.find(index)
    if location is None:
        return None
    pages = PAGES.get(id(tensor))
    if pages is not None:
        pages.write(index, value._block[()] if isinstance(value, DTensor) else value)
    device, at = location
    is_here = where.is_whole or where.is_here(device)
    return (tensor._block, (..., *at)) if is_here else (np.empty((), spec.dtype), (...,))


class _ElementOwners:
    """Which device has an element, and where in its block."""

    def __init__(self, spec: TensorSpec, cuts: Sequence[Consecutive]) -> None:
        layout, mesh = spec.layout, spec.mesh
        self._numbers = [layout.block_numbers(device) for device in range(mesh.size)]
        self._mesh = mesh
        self.is_whole = layout.is_fully_replicated()
        self.result = TensorSpec(layout._recut(()), (), spec.dtype).layout  # the one that is found at once
        self._shape, self.cuts = spec.shape, cuts
        self.owners = {numbers: device for device, numbers in reversed(list(enumerate(self._numbers)))}

    def is_here(self, device: int) -> bool:
        """Return whether this rank has the same block as *device*."""
        rank = self._mesh.rank
        return rank is not None and self._numbers[rank] == self._numbers[device]

    def find(self, index: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
        """Return the first device that has the element at *index*, and where; None if it is out of bounds."""
        numbers, at = [], []
        for i, n, cut in zip(index, self._shape, self.cuts, strict=True):
            if not -n <= i < n:
                return None
            i %= n
            number = 0 if cut.blocks == 1 else cut.block_of(i)
            numbers.append(number)
            at.append(i - cut.start(number))
        return self.owners[tuple(numbers)], tuple(at)


@lru_cache(maxsize=1024)
def _where(spec: TensorSpec) -> _ElementOwners | None:
    """Return where elements are; None for tensors whose elements go the long way."""
    if spec.dtype.kind not in KINDS or spec.mesh.size > SMALL_MESHES or 0 in spec.shape:
        return None
    cuts = [spec.layout.cut(axis, n) for axis, n in enumerate(spec.shape)]
    return _ElementOwners(spec, [cut.consecutive for cut in cuts]) if all(cut.is_consecutive for cut in cuts) else None
