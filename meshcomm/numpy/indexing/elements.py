"""One element: ``t[i, j]``, which all devices get from its owner in one message, and ``t[i, j] = number``.

Loops over elements take each once. So nothing is kept by their indices, and nothing is planned. In scripts,
:mod:`meshcomm.numpy.indexing.pages` brings many at once.
"""

from functools import lru_cache
from typing import TypeGuard

import numpy as np

from meshcomm.blocks.make import make
from meshcomm.blocks.small import one_of_all
from meshcomm.core._tuning import SMALL_MESHES
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.slicing import Items
from meshcomm.numpy.indexing._elements import ElementOwners, element_of, set_elements, to_set
from meshcomm.numpy.indexing.pages import LINE, fetch_elements, pages_of

__all__ = ["element_of", "is_element", "to_set"]


def _fetched_element(tensor: DTensor, index: tuple[int, ...]) -> DTensor | None:
    """Return an element that no page has. Collective over the mesh; None for what the slow path has to say."""
    spec = tensor._spec
    owners = _owners_of(spec)
    if owners is None:
        return None
    location = owners.find(index)
    if location is None:
        return None
    device, at = location
    block = tensor._block
    if owners.is_whole:
        return _as_tensor(block[at], spec)
    if is_scripted():
        paged = _element_of_page(tensor, index, owners)
        if paged is not None:
            return _as_tensor(paged, spec)
    mine = block[at].tobytes() if owners.is_here(device) else b""
    data = one_of_all(f"t{list(index)}", spec, hash((device, *at)), mine, device)
    return _as_tensor(np.ndarray((), spec.dtype, data), spec)


def _as_tensor(value: object, spec: TensorSpec) -> DTensor:
    owners = _owners_of(spec)
    assert owners is not None
    return make(np.array(value, spec.dtype), owners.result, (), spec.dtype)


def _element_of_page(tensor: DTensor, index: tuple[int, ...], owners: ElementOwners) -> object:
    """Return an element that comes in a new page; None if it is to come alone. Collective over the mesh."""
    pages, flat = pages_of(tensor), 0
    for i, n in zip(index, tensor.shape, strict=True):
        flat = flat * n + i % n
    flats = pages.elements_to_fetch(flat)
    pages.count_call(tensor)
    if pages.whole is None:
        if flats is None:
            return None
        pages.keep(fetch_elements(tensor, flats, owners), flats)
    element = pages.find(index)
    assert element is not None
    return element[0]


def is_element(items: Items, tensor: DTensor) -> TypeGuard[tuple[int, ...]]:
    """Return whether an index is one integer for each axis, and this rank has a block."""
    return tensor._has_block and tensor.ndim > 0 and all(type(item) is int for item in items)


@lru_cache(maxsize=1024)
def _owners_of(spec: TensorSpec) -> ElementOwners | None:
    """Return where elements are; None for tensors whose elements take the slow path."""
    if spec.dtype.kind not in "biufc" or spec.mesh.size > SMALL_MESHES or 0 in spec.shape:
        return None
    layout, cuts = spec.layout, [spec.layout.cut(axis, n) for axis, n in enumerate(spec.shape)]
    if not all(cut.is_consecutive for cut in cuts):
        return None
    numbers = [layout.block_numbers(device) for device in range(spec.mesh.size)]
    owners = {block: device for device, block in reversed(list(enumerate(numbers)))}
    starts = tuple(tuple(cut.consecutive.start(number) for number in range(cut.blocks)) for cut in cuts)
    result = TensorSpec(layout._recut(()), (), spec.dtype).layout  # the one that is found at once
    is_whole = layout.is_fully_replicated()
    return ElementOwners(spec.mesh, spec.shape, spec.dtype, starts, owners, numbers, is_whole, result)


set_elements(_owners_of, _fetched_element, _as_tensor, LINE)
